"""A pool of spawned processes, and a `multiprocessing.Pool`: their work in the trace of the run.

python examples/pools.py
"""

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor

import spanfold


@spanfold.traced
def square(number: int) -> int:
    return number * number


def join(environment: dict[str, str]) -> None:
    """Let a process of a pool that spanfold has not wrapped join the run: once, before it records anything."""
    os.environ.update(environment)


def main() -> None:
    spawned = multiprocessing.get_context("spawn")
    with spanfold.run("pools") as run:
        # Each task joins the run by itself, and stands below this stage.
        with spanfold.stage("executor"), spanfold.traced_executor(ProcessPoolExecutor(2, mp_context=spawned)) as pool:
            print(sum(pool.map(square, range(4))))
        with spanfold.stage("pool"):
            # A multiprocessing.Pool has no submit(): its processes are told once, when they start.
            workers = spawned.Pool(2, initializer=join, initargs=(spanfold.child_env(),))
            print(sum(workers.map(square, range(4))))
            workers.close()
            workers.join()
    print(f"one trace, {run.trace_id}, in {run.dir}")


if __name__ == "__main__":
    main()
