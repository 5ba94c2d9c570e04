"""The smallest whole run: a stage, a model call, a score. Needs nothing but spanfold.

python examples/first_run.py
"""

import spanfold

QUESTIONS = {"2 + 3": "5", "7 - 9": "-2", "6 * 7": "42", "2 ** 10": "1024"}


def calculate(question: str) -> str:
    """Stand for any model: this one is a pocket calculator without powers."""
    left, operator, right = question.split()
    a, b = int(left), int(right)
    return str({"+": a + b, "-": a - b, "*": a * b}.get(operator, "unknown"))


def main() -> None:
    with spanfold.run("first", questions=len(QUESTIONS)) as run:
        right = 0
        with spanfold.stage("M1", cycle=0) as stage:
            failures: list[str] = []
            for question, expected in QUESTIONS.items():
                with spanfold.model_call("pocket-calculator", operation="calculate", input=question) as call:
                    answer = calculate(question)
                    call.output(answer)
                if answer == expected:
                    right += 1
                else:
                    failures.append(question)
            stage.set(failures=failures)
            spanfold.score("accuracy", right / len(QUESTIONS), comment="exact match")
        # M1 to M5 have folders of their own; any other name gets one under stages/.
        with spanfold.stage("report"):
            print(f"{right} of {len(QUESTIONS)} right; wrong: {', '.join(failures)}")
    print(f"recorded in {run.dir}: see run.json, M1/log.json and stages/report/log.json")


if __name__ == "__main__":
    main()
