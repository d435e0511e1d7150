"""The command `rrlforge`: train, eval, record, doctor, script.

Errors are one line on stderr and exit code 2; Ctrl-C is 130.
"""
from __future__ import annotations

import argparse
import dataclasses
import difflib
import os
import sys
import time
from pathlib import Path

from rrlforge.config import PRESETS, GRPOConfig, from_dict
from rrlforge.errors import ForgeError


class Parser(argparse.ArgumentParser):
    """argparse whose errors are `ForgeError`s of one line."""

    def __init__(self, **kwargs):
        super().__init__(allow_abbrev=False, formatter_class=argparse.ArgumentDefaultsHelpFormatter, **kwargs)
        self.set_defaults(options=self._option_string_actions)

    def error(self, message: str):
        raise ForgeError(message)


def parse(argv: list[str] | None) -> argparse.Namespace:
    """Parse the command line; an unknown option names the nearest known one of its command."""
    options, extra = build_parser().parse_known_args(argv)
    if extra:
        word = extra[0].split("=")[0]
        near = difflib.get_close_matches(word, options.options, 1)
        hint = f"did you mean {near[0]}?" if near else f"see rrlforge {options.command} --help"
        raise ForgeError(f"unknown option {word}: {hint}")
    return options


def add_settings(parser: argparse.ArgumentParser) -> None:
    """One option for each field of GRPOConfig; what is not given stays out of the namespace."""
    for f in dataclasses.fields(GRPOConfig):
        flag, text = "--" + f.name.replace("_", "-"), f.metadata["help"].replace("%", "%%")
        shown = f"{text} (default: {f.default!r})"
        if f.type == "bool":
            parser.add_argument(flag, action=argparse.BooleanOptionalAction, default=argparse.SUPPRESS, help=shown)
        else:
            parser.add_argument(flag, type={"int": int, "float": float, "str": str}[f.type], default=argparse.SUPPRESS,
                                choices=f.metadata["choices"] or None, metavar=None if f.metadata["choices"] else f.type.upper(),
                                help=shown)


def build_parser() -> Parser:
    parser = Parser(prog="rrlforge", description="Hand-written GRPO on one GPU, and the tools of its book.")
    commands = parser.add_subparsers(dest="command", required=True, parser_class=Parser)

    train = commands.add_parser("train", help="run GRPO")
    train.add_argument("--out", default=None, help="folder of the run; default runs/MODEL-TIME")
    train.add_argument("--resume", action="store_true", help="go on from the last checkpoint in --out")
    train.add_argument("--preset", choices=sorted(PRESETS), default=None, help="a tested set of settings; options override it")
    add_settings(train)
    train.set_defaults(run=run_train)

    score = commands.add_parser("eval", help="accuracy with its interval, pass@k, and the protocol")
    score.add_argument("--model", default="tiny", help="tiny, a folder (RUN/model too), or a hub id")
    score.add_argument("--task", default="", choices=("", "arith", "gsm8k"),
                       help="empty: that of the run, arith for tiny, gsm8k otherwise")
    score.add_argument("--data", default="", help="folder with train.jsonl and test.jsonl; empty: that of the run, or the task's own")
    score.add_argument("--problems", type=int, default=0, help="first N problems; 0: all")
    score.add_argument("--split", choices=("test", "train"), default="test", help="which problems")
    score.add_argument("--samples", type=int, default=1, help="completions a problem")
    score.add_argument("--temperature", type=float, default=0.0, help="0 is greedy")
    score.add_argument("--top-p", type=float, default=1.0, help="nucleus sampling")
    score.add_argument("--max-new-tokens", type=int, default=0, help="0: that of the run, or the task's own")
    score.add_argument("--thinking", action="store_true", help="let the template open a think block (Qwen3)")
    score.add_argument("--engine", choices=("auto", "hf", "vllm"), default="auto", help="auto: vllm on CUDA, hf on a CPU")
    score.add_argument("--engine-gib", type=float, default=8.0, help="GiB of GPU memory for vLLM")
    score.add_argument("--seed", type=int, default=0, help="of sampling")
    score.add_argument("--out", default="", help="save the score and its protocol as JSON")
    score.set_defaults(run=run_eval)

    record = commands.add_parser("record", help="measure a record of the book anew, with its origin")
    record.add_argument("name", nargs="?", default="", help="empty: list the names")
    record.set_defaults(run=run_record)

    doctor = commands.add_parser("doctor", help="check this machine: what is missing, and the command that mends it")
    doctor.add_argument("--full", action="store_true", help="also start vLLM and sample one token (minutes)")
    doctor.add_argument("--offline", action="store_true", help="do not ask the hub")
    doctor.add_argument("--json", action="store_true", help="print JSON")
    doctor.set_defaults(run=run_doctor)

    script = commands.add_parser("script", help="print forge.py, to keep and to change")
    script.set_defaults(run=run_script)
    return parser


def run_train(options: argparse.Namespace) -> None:
    from rrlforge import config, forge, report, runs

    names = {f.name for f in dataclasses.fields(GRPOConfig)}
    given = {k: v for k, v in vars(options).items() if k in names}
    if options.resume and not options.out:
        raise ForgeError("--resume needs --out FOLDER: which run should go on?")
    base = config.to_dict(runs.load_config(options.out)) if options.resume else {}
    cfg = from_dict({**base, **(PRESETS[options.preset] if options.preset else {}), **given})
    stem = Path(cfg.model).name or "run"
    folder = Path(options.out or f"runs/{stem}-{time.strftime('%Y%m%d-%H%M%S')}")
    forge.train(cfg, folder, options.resume)
    picture = report.save_training_curve(folder)
    print(report.summary(folder))
    print(f"run {folder} · curve {picture} · model {folder / 'model'}")


def run_of(model: str) -> Path | None:
    """The folder of the run that trained `model`, which then is its model/; None for any other model."""
    folder = Path(os.path.expanduser(model)).resolve()
    run = folder.parent
    is_run = folder.name == "model" and (run / "config.json").is_file() and (run / "metrics.jsonl").is_file()
    return run if is_run else None


def take_from_run(options: argparse.Namespace) -> str:
    """Fill task, data and max_new_tokens of an eval that were not given with those of the model's run.

    Returns a line that says what was taken, "" for nothing. Data and length of a run belong to its task: with
    another --task they are left alone.
    """
    from rrlforge import runs

    run = run_of(options.model)
    if run is None:
        options.task = options.task or GRPOConfig(model=options.model).task_name
        return ""
    cfg = runs.load_config(run)
    taken = {}
    if options.task in ("", cfg.task_name):
        own = {"task": cfg.task_name, "data": cfg.data, "max_new_tokens": cfg.max_new_tokens}
        taken = {name: value for name, value in own.items() if value and not getattr(options, name)}
        vars(options).update(taken)
    words = ", ".join(f"--{name.replace('_', '-')} {value}" for name, value in taken.items())
    return f"from the run {run.name}: {words}" if words else ""


def check_model(name: str) -> None:
    """Raise `ForgeError` where there is no such model, before anything takes time. tiny is made when it is loaded."""
    from rrlforge import models, tasks

    if models.TINY.fullmatch(name):
        return
    if tasks.HUB_ID.fullmatch(name) and not Path(name).exists():
        tasks.download(name, "model", ["config.json"])
    else:
        models.model_folder(name)


def check_eval(options: argparse.Namespace) -> None:
    """Raise `ForgeError` for options that cannot be right, whatever model and task are."""
    if options.problems < 0 or options.samples < 1:
        raise ForgeError(f"--problems {options.problems} --samples {options.samples}: at least 0 and 1")
    if options.max_new_tokens < 0:
        raise ForgeError(f"--max-new-tokens {options.max_new_tokens}: at least 0")
    if options.out and not Path(options.out).parent.is_dir() or Path(options.out or "x.json").is_dir():
        raise ForgeError(f"--out {options.out}: name a file in a folder that exists")
    if not 0.5 <= options.engine_gib <= 1024:
        raise ForgeError(f"--engine-gib {options.engine_gib:g}: outside [0.5, 1024]")


def run_eval(options: argparse.Namespace) -> None:
    from rrlforge import engines, evaluate, tasks

    check_eval(options)
    check_model(options.model)
    taken = take_from_run(options)
    try:
        task = tasks.load_task(options.task, options.data or None)
    except ForgeError as error:
        raise ForgeError(f"{error} ({taken})" if "--data" in taken else str(error)) from None
    problems = (task.test if options.split == "test" else task.train)[:options.problems or None]
    limit = options.max_new_tokens or task.max_new_tokens
    sampling = engines.Sampling(limit, options.temperature, options.top_p, options.seed)
    evaluate.check(sampling, options.samples, problems)
    if taken:
        print(taken, flush=True)
    engine, tokenizer = engines.standalone(options.model, problems, task, limit, options.engine, options.engine_gib,
                                           options.thinking)
    score = evaluate.evaluate(engine, tokenizer, task, problems, sampling, options.samples, options.split, options.thinking)
    print(f"{options.model} on {task.name} {options.split}: {score}")
    if options.out:
        score.protocol["model"] = "/".join(Path(options.model).parts[-2:])
        score.save(options.out)
        print(f"saved {options.out}")
    engine.close()


def run_record(options: argparse.Namespace) -> None:
    from rrlforge import measure

    if not options.name:
        print("\n".join(f"{name:28s} {recipe.about}" for name, recipe in measure.RECIPES.items()))
        return
    print(measure.run(options.name))


def run_doctor(options: argparse.Namespace) -> int:
    from rrlforge import doctor

    checks = doctor.examine(offline=options.offline, full=options.full)
    print(doctor.as_json(checks) if options.json else doctor.text(checks))
    return doctor.exit_code(checks)


def run_script(_: argparse.Namespace) -> None:
    print((Path(__file__).parent / "forge.py").read_text("utf8"), end="")


def main(argv: list[str] | None = None) -> int:
    try:
        options = parse(argv)
        return options.run(options) or 0
    except ForgeError as error:
        print(f"rrlforge: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"rrlforge: {error.filename or 'a file'}: {error.strerror or error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("rrlforge: stopped by Ctrl-C; go on with --resume --out FOLDER", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
