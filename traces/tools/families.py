"""The best setting of each knob that ``tune`` lists, in a box: ``WORKLOAD HARDWARE RECORD HOSTS RATE``."""

import sys
from pathlib import Path

import sim
from sim.formats.record_files import start_record
from sim.nouns.hardware import Hardware
from sim.nouns.workload import Workload
from sim.units import parse_rate_bits
from sim.validator.jobs import Candidate, ReplayJob
from sim.validator.launch import Place
from sim.validator.replay import replay

_NAMES = {"default": "DDP default", "bucket_indices": "recommended"}


def families(workload: Workload, hardware: Hardware) -> tuple[Candidate, ...]:
    """The recommendation, and what each knob of DDP's reaches."""
    return tuple(
        Candidate(name=_NAMES.get(name, name), assignment=family.assignment)
        for name, family in sim.tune(workload, hardware).families.items()
        if name != "bucket_cap_mb_list"  # the recommended ones
    )


def main() -> None:
    """Replay them."""
    workload, hardware = sim.load_workload(Path(sys.argv[1])), sim.load_hardware(Path(sys.argv[2]))
    folder, place = Path(sys.argv[3]), Place(rates_bits=(parse_rate_bits(sys.argv[5]),) * int(sys.argv[4]))
    start_record(folder, workload, hardware)
    replay(ReplayJob(workload=workload, candidates=families(workload, hardware), rounds=6), place, folder)


if __name__ == "__main__":
    main()
