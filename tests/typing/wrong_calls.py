# pyright: strict
"""Calls that a type checker must refuse. Never run: each line that ends in `# wrong` must be an error, and no other line."""

from pathlib import Path

from right_calls import Box, Case, Prober, bare, coroutine, generator, picked, staged, traced_overload, variadic

import spanfold

bare("a")  # wrong
bare()  # wrong
bare(1, "y")  # wrong
bare(1, z=2)  # wrong
number: int = bare(1)  # wrong
staged("m")  # wrong
staged("m", cases=[1])  # wrong
variadic(b"", "a")  # wrong
picked(1.5)  # wrong
traced_overload(1.5)  # wrong
generator("3")  # wrong
Case()  # wrong
Case("a", weight="heavy")  # wrong
Box()  # wrong
Prober.class_inner("a")  # wrong
Prober.static_outer("a")  # wrong


async def awaits(prober: Prober) -> None:
    await coroutine("a")  # wrong
    await prober.async_method()  # wrong
    prober.method(1.5)  # wrong
    prober.size()  # wrong
    text: int = await coroutine(1)  # wrong
    assert text


@spanfold.traced(kind="nonsense")  # wrong
def kind() -> None: ...


def contexts() -> None:
    spanfold.configure(durability="sometimes")  # wrong
    spanfold.configure(content="some")  # wrong
    spanfold.configure(run_directory="runs")  # wrong
    spanfold.run()  # wrong
    spanfold.score("accuracy")  # wrong
    spanfold.score("accuracy", object())  # wrong
    spanfold.flush(timeout_s="5")  # wrong
    with spanfold.run("digits", dir=Path("runs/001")) as run:
        assert run.directory  # wrong
    with spanfold.model_call("m") as call:
        call.usage(input_tokens="12")  # wrong
        call.usage(12)  # wrong
        call.finish_reasons(1)  # wrong
        call.result("x")  # wrong
    current = spanfold.current_run()
    assert current.dir  # wrong
