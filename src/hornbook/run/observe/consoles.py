"""The consoles of a run: log.txt, and the terminal. They are there before the model is, which may take a while."""

import contextlib
from collections.abc import Iterator

from hornbook.parallel.world import World
from hornbook.run.job import Job
from hornbook.run.memory import memory_of
from hornbook.run.observe.console import Console, Header, Watch
from hornbook.run.start.precision import describe_precision


@contextlib.contextmanager
def open_consoles(job: Job, world: World) -> Iterator[list[Console]]:
    """log.txt, and stderr unless people want silence; none on a rank that does not lead."""
    with contextlib.ExitStack() as stack:
        if not job.place.is_rank0:
            yield []
            return
        header, every = describe_run(job, world), job.recipe.log.every
        log = stack.enter_context(job.run.log.open("a", encoding="utf-8"))
        consoles = [stack.enter_context(Console(header, every=every, stream=log, live=False))]
        if not job.quiet:
            shown = Console(header, every=every, watch=watch_of(job, world))
            if shown.live:
                job.inbox.show_interrupts()
            consoles.append(stack.enter_context(shown))
        yield consoles


def watch_of(job: Job, world: World) -> Watch:
    """What a live panel asks while the run goes on."""

    def memory() -> str:
        return f"{memory_of(world.device)}{' (rank 0)' if world.size > 1 else ''}"

    def doing() -> tuple[str, int]:
        beat = job.pulse.read()
        return beat.phase, beat.step

    return Watch(stopping=lambda: job.inbox.interrupted, memory=memory, doing=doing)


def describe_run(job: Job, world: World) -> Header:
    """Facts for the first line of the console."""
    recipe, horizon = job.recipe, job.horizon
    return Header(
        name=job.run.name,
        parameters=job.inputs.parameters,
        precision=describe_precision(recipe.train.precision, job.origins),
        device=str(world.device),
        batch_tokens=recipe.train.batch_tokens,
        total_steps=horizon.steps_from(0),
        total_tokens=horizon.tokens,
        schedule=recipe.optim.schedule.kind,
        ramp=recipe.train.ramp.kind != "none",
    )
