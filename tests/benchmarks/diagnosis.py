"""The exam of the diagnosis: `python tests/benchmarks/diagnosis.py [--json] [--only TEXT] [--seed N]`.

Asks every question of `exam.py` once and prints accuracy, abstentions, confusions, wrong verdicts stated with high
confidence, right sub-causes, and the error of the headroom: against the lab's answer where everything waits, and where
something computes against plain loops of the same loader and step, before the diagnosis and after it, since the cores
are shared by all that runs; where those loops disagree, and always where much is handed over, both are asked again in
turn, and means are compared. What each time was stated is recorded. The load is printed.

`--seed 7` asks fresh questions: the same faults at other strengths, which no threshold was chosen on. `--flips` asks
each fault switched off, on, and off again. Parts of a long exam are asked apart and marked together:

    python tests/benchmarks/diagnosis.py --part 1/6 --record rows.jsonl
    python tests/benchmarks/diagnosis.py --marks rows.jsonl
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import fmean, median
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.benchmarks.exam import QUESTIONS, AskedLoader, AskedStep, Question, flips, fresh
from tests.benchmarks.plain_headroom import plain_headroom
from workbench.loaders.settings import LoaderSettings
from workbench.measure.diagnosis import Diagnosis, diagnose_with
from workbench.measure.trial import TrialServer

STARTS = 3
SECONDS = 0.25
HEADROOM_ERROR = 0.10
LOOPS_OF_MUCH = 3  # where much is handed over, one start differs from the next by a tenth
LOOPS_AGREE, MOST_ASKED = 1.05, 5  # highest over lowest headroom of the loops, until which a question is asked again


def ask(
    server: TrialServer, asked: AskedLoader, question: Question, starts: int = STARTS, seconds: float = SECONDS
) -> Diagnosis:
    """The diagnosis of one question."""
    asked.put(question)
    settings = LoaderSettings(num_workers=question.num_workers, persistent_workers=question.num_workers > 0)
    return diagnose_with(server, settings, starts, seconds)


def examine(questions: Sequence[Question], report: Any = None) -> list[dict[str, Any]]:
    """One row a question."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "question.json")
        asked = AskedLoader(path)
        asked.put(Question("healthy"))
        with TrialServer(asked, step=AskedStep(path)) as server:
            server.probe()
            for question in questions:
                shown = _shown(question)
                begun = time.perf_counter()
                found = [ask(server, asked, question)]
                seconds = round(time.perf_counter() - begun, 1)
                shown += _shown(question)
                while shown and _is_open(question, shown) and len(found) < MOST_ASKED:
                    found.append(ask(server, asked, question))
                    shown += _shown(question)
                rows.append(_row(question, found, shown) | {"seconds": seconds})
                if report is not None:
                    report(rows[-1])
    return rows


def _shown(question: Question) -> list[float]:
    """What plain loops show, as many as one time asks for; none where the lab knows."""
    loops = 0 if _is_computed(question) else LOOPS_OF_MUCH if question.hands_much_over else 1
    return [plain_headroom(question) for _ in range(loops)]


def _is_open(question: Question, shown: Sequence[float]) -> bool:
    """Whether loops and diagnosis are asked again; what the diagnosis said has no part in it."""
    return question.hands_much_over or max(shown) > LOOPS_AGREE * min(shown)


def _is_computed(question: Question) -> bool:
    """Whether the lab knows the headroom: everything waits, and torch's own work decides nothing."""
    return question.only_waits and bool(question.right_headroom)


def _row(question: Question, asked: Sequence[Diagnosis], shown: Sequence[float]) -> dict[str, Any]:
    """The first diagnosis is marked; only its headroom is averaged with that of the others, as that of the loops is."""
    found, headroom = asked[0], fmean(one.headroom for one in asked)
    truth = fmean(shown) if shown else question.right_headroom
    error = headroom / truth - 1 if truth else None
    lab = question.answer()
    rates = (found.loader_samples_per_second, found.step_samples_per_second, found.combined_samples_per_second)
    right = (lab.loader_samples_per_second, lab.step_samples_per_second, lab.combined_samples_per_second)
    return {
        "question": question.name,
        "right": question.right_bound,
        "bound": found.bound,
        "cause": found.cause,
        "cause_right": not question.causes or found.cause in question.causes,
        "confidence": found.confidence,
        "headroom": headroom,
        "asked": len(asked),
        "stated": [round(one.headroom, 3) for one in asked],
        "stated_interval": [round(end, 3) for end in found.headroom_interval],
        "shown": [round(one, 3) for one in shown],
        "headroom_right": truth,
        "headroom_computed": question.right_headroom,
        "headroom_error": error,
        "only_waits": _is_computed(question),
        "rates": [round(rate, 1) for rate in rates],
        "right_rates": [None if rate is None else round(rate, 1) for rate in right],
        "starts": found.starts,
        "foreign": next((note for note in found.notes if note.startswith("other programs")), ""),
    }


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Accuracy and the rest over all rows."""
    answered = [row for row in rows if row["bound"] != "unknown"]
    right = [row for row in answered if row["bound"] == row["right"]]
    wrong = [row for row in answered if row["bound"] != row["right"]]
    errors: dict[bool, list[float]] = {True: [], False: []}
    for row in rows:
        if row["headroom_error"] is not None:
            errors[row["only_waits"]].append(abs(row["headroom_error"]))
    return {
        "questions": len(rows),
        "accuracy": len(right) / len(rows),
        "accuracy_of_answers": len(right) / max(1, len(answered)),
        "abstentions": 1 - len(answered) / len(rows),
        "wrong_with_high_confidence": [row["question"] for row in wrong if row["confidence"] == "high"],
        "confusions": {
            f"{a} taken for {b}": n for (a, b), n in Counter((r["right"], r["bound"]) for r in wrong).items()
        },
        "causes_right": sum(row["cause_right"] for row in right) / max(1, len(right)),
        "headroom_error_median_waiting": median(errors[True]) if errors[True] else None,
        "headroom_within_10_percent_waiting": _within(errors[True]),
        "headroom_error_median_computing": median(errors[False]) if errors[False] else None,
        "headroom_within_10_percent_computing": _within(errors[False]),
    }


def _within(errors: list[float]) -> float | None:
    return sum(error <= HEADROOM_ERROR for error in errors) / len(errors) if errors else None


def _line(row: dict[str, Any]) -> str:
    mark = "ok " if row["bound"] == row["right"] else "-- " if row["bound"] == "unknown" else "BAD"
    error = f"{row['headroom_error']:+.0%}" if row["headroom_error"] is not None else "–"
    cause = row["cause"] if row["cause_right"] else f"{row['cause']} (!)"
    return (
        f"{mark} {row['question']:<38} {row['right']:<8} -> {row['bound']:<8} {row['confidence']:<6} headroom "
        f"{row['headroom']:.2f} ({error})  {cause}  [{row['seconds']} s, {row['starts']} starts]"
    )


def part_of(questions: Sequence[Question], part: str) -> list[Question]:
    """The questions of a part "2/6": every sixth from the second on, so that each part holds some of each kind."""
    number, _, of = part.partition("/")
    if not (number.isdigit() and of.isdigit() and 1 <= int(number) <= int(of)):
        raise SystemExit(f"--part {part!r} is none: give for instance 2/6, the second of six")
    return list(questions)[int(number) - 1 :: int(of)]


def main() -> None:
    """Runs the exam, a part of it, or marks what parts have recorded."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--only", default="", help="questions whose name holds one of these texts: a,b")
    parser.add_argument("--seed", type=int, help="fresh strengths, drawn with this seed")
    parser.add_argument("--flips", action="store_true", help="each fault off, on and off again")
    parser.add_argument("--part", default="1/1", help="ask the n-th of m parts: n/m")
    parser.add_argument("--record", metavar="FILE", help="append a line of JSON a question")
    parser.add_argument("--marks", metavar="FILE", nargs="+", help="ask nothing, mark what was recorded there")
    arguments = parser.parse_args()
    begun = time.perf_counter()
    if arguments.marks:
        rows = [json.loads(line) for path in arguments.marks for line in Path(path).read_text().splitlines()]
    else:
        questions = QUESTIONS if arguments.seed is None else fresh(arguments.seed)
        questions = flips(questions) if arguments.flips else questions
        questions = [q for q in questions if any(text in q.name for text in arguments.only.split(","))]
        rows = examine(part_of(questions, arguments.part), partial(_report, arguments))
    result = summary(rows) | {"seconds": round(time.perf_counter() - begun)}
    if arguments.json:
        print(json.dumps({"summary": result, "rows": rows}, indent=1))
        return
    print()
    for name, value in result.items():
        print(f"{name:<40} {value}")


def _report(arguments: argparse.Namespace, row: dict[str, Any]) -> None:
    if not arguments.json:
        print(_line(row), flush=True)
    if arguments.record:
        with open(arguments.record, "a") as file:
            file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
