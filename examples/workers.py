"""One trace over threads, asyncio and another process, with nothing passed by hand but an environment.

python examples/workers.py
"""

import asyncio
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import spanfold


@spanfold.traced(kind="tool")
def count_words(text: str) -> int:
    """A tool: its arguments and its result are in the record."""
    return len(text.split())


@spanfold.traced
async def fetch(name: str) -> str:
    """Work that waits; calls that overlap are told apart."""
    await asyncio.sleep(0.01)
    return f"{name} says hello world"


async def fetch_all(names: list[str]) -> list[str]:
    return await asyncio.gather(*(fetch(name) for name in names))


CHILD = """
import spanfold
with spanfold.timed("child work"):
    print(sum(n * n for n in range(100_000)))
"""


def main() -> None:
    with spanfold.run("workers") as run, spanfold.stage("gather"):
        texts = asyncio.run(fetch_all(["ada", "grace", "alan"]))
        # A pool does not know who submitted what; this one does.
        with spanfold.traced_executor(ThreadPoolExecutor(2)) as pool:
            counts = list(pool.map(count_words, texts))
        with spanfold.agent("squarer") as agent:
            child = subprocess.run(
                [sys.executable, "-c", CHILD], env=spanfold.child_env(), capture_output=True, text=True, check=True
            )
            agent.set(answer=child.stdout.strip())
        print(f"{sum(counts)} words; the child process found {child.stdout.strip()}")
    print(f"one trace, {run.trace_id}, in {run.dir}")


if __name__ == "__main__":
    main()
