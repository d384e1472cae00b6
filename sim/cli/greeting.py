"""What ``bucketsim`` says where no command is given: the loop, and where to go on."""

from sim.cli.loop_steps import CALIBRATE, RECORD, REPLAY, TUNE

EXPORT = "bucketsim export workload.json --assignment assignment.json --as snippet"
_LOOP = (
    ("when is each gradient ready?", RECORD),
    ("what does the link carry?", CALIBRATE),
    ("which buckets are best, and is it worth it?", TUNE),
    ("what goes into the training script?", EXPORT),
    ("is it true, on real ranks?", REPLAY),
)


def the_loop() -> str:
    """The loop in five lines, each a question and the command that answers it; then what comes next."""
    width = max(len(question) for question, _ in _LOOP)
    lines = [f"{number} {ask:{width}}  {run}" for number, (ask, run) in enumerate(_LOOP, 1)]
    return "\n".join(
        (
            "bucketsim finds the gradient buckets that make a DistributedDataParallel job fastest.",
            *lines,
            "next: bucketsim demo (all of it on a bundled recording), bucketsim doctor (what this machine "
            "can run), bucketsim dash (the dashboard, with a manual), bucketsim --help (all commands)",
        )
    )
