"""Random faults against real runs, with a table at the end.

cd tests && python -m faults --faults 200 --seed 0
cd tests && python -m faults --faults 5 --runtime process --kind "actor killed"
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from datetime import datetime
from pathlib import Path

from faults import campaign, place, table
from faults.kinds import KINDS

ROOT = Path(__file__).parents[2]


def stop_once(number: int, frame: object) -> None:
    """End the campaign, with its table. Only the first time: `timeout` and `make` pass the same
    signal on twice, and what is under way must be cleaned up.
    """
    for other in (signal.SIGINT, signal.SIGTERM):
        signal.signal(other, signal.SIG_IGN)
    raise KeyboardInterrupt(number)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="faults", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--faults", type=int, default=200, help="how many (default: 200)")
    parser.add_argument("--seed", type=int, default=0, help="of what is drawn (default: 0)")
    names = sorted({kind.name for kind in KINDS})
    parser.add_argument("--kind", action="append", default=[], choices=names, metavar="KIND")
    parser.add_argument("--runtime", action="append", choices=list(campaign.SHARES))
    parser.add_argument("--lanes", type=int, default=campaign.LANES, help="stories at a time")
    parser.add_argument("--json", type=Path, help="write the table here, and as .md beside it")
    parser.add_argument("--keep", type=Path, help="keep the folders of what broke here")
    parser.add_argument("--list", action="store_true", help="print the kinds of faults")
    args = parser.parse_args()
    if args.list:
        print("\n".join(names))
        return 0
    place.enter(["-m", "faults", *sys.argv[1:]])
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop_once)
    began = time.monotonic()

    def say(line: str) -> None:
        print(f"{datetime.now():%H:%M:%S} {' '.join(line.split())}", flush=True)

    outcomes = campaign.run(
        args.faults,
        args.seed,
        say,
        kinds=args.kind,
        runtimes=args.runtime or tuple(campaign.SHARES),
        lanes=args.lanes,
        keep=args.keep and args.keep.resolve(),
    )
    cut_off = campaign.STOPPING.is_set()
    result = table.make(outcomes, args.seed, time.monotonic() - began, cut_off and args.faults)
    print(table.markdown(result))
    if args.json:
        table.write(result, args.json)
    if result["broken"]:
        return 1
    return 130 if cut_off else 0


if __name__ == "__main__":
    sys.exit(main())
