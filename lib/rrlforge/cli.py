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

    ledger = commands.add_parser("vram", help="GiB that a training needs, block by block, and whether a card holds it")
    ledger.add_argument("--model", default="Qwen3-0.6B", help="a Qwen name, or a folder or file with a config.json")
    ledger.add_argument("--method", choices=("full", "lora", "qlora"), default="full", help="what is trained")
    ledger.add_argument("--length", type=int, default=1024, help="longest prompt plus completion, tokens")
    ledger.add_argument("--budget", type=int, default=8192, help="token_budget: padded tokens in a micro-batch")
    ledger.add_argument("--chunk", type=int, default=512, help="logit_chunk")
    ledger.add_argument("--checkpointing", action=argparse.BooleanOptionalAction, default=True, help="recompute activations in backward")
    ledger.add_argument("--reference", action="store_true", help="keep a reference model")
    ledger.add_argument("--rank", type=int, default=16, help="of LoRA")
    ledger.add_argument("--optimizer", choices=("adamw", "adamw8bit"), default="adamw", help="AdamW with fp32 or 8-bit states")
    ledger.add_argument("--engine-gib", type=float, default=8.0, help="of the rollout engine; 0: none on this card")
    ledger.add_argument("--engine-bytes", type=float, default=2.0, help="bytes a weight in the engine; 0.55: 4 bits")
    ledger.add_argument("--sleep", action="store_true", help="the engine frees its memory while training")
    ledger.add_argument("--card", default="RTX 5090", help="a card's name, or the GiB that CUDA sees of it")
    ledger.add_argument("--desktop-gib", type=float, default=0.0, help="GiB that a desktop takes")
    ledger.add_argument("--json", action="store_true", help="print JSON")
    ledger.set_defaults(run=run_vram)

    bench = commands.add_parser("bench", help="tokens a second over concurrent requests, prefill and decode apart, and the roofline")
    bench.add_argument("--model", default="tiny", help="tiny, a folder, or a hub id")
    bench.add_argument("--concurrency", default="1,8,32,128,256,512", help="requests at a time")
    bench.add_argument("--prompt-tokens", type=int, default=128, help="random tokens in")
    bench.add_argument("--new-tokens", type=int, default=256, help="tokens out, no end token stops")
    bench.add_argument("--repeats", type=int, default=3, help="measurements of each")
    bench.add_argument("--engine", choices=("vllm", "hf"), default="vllm", help="vllm runs on a CPU too")
    bench.add_argument("--engine-gib", type=float, default=8.0, help="GiB of GPU memory for vLLM")
    bench.add_argument("--card", default="", help="whose roofline; empty: that of this machine's card")
    bench.add_argument("--seed", type=int, default=0, help="of the prompts")
    bench.add_argument("--out", default="", help="save the sweep as JSON")
    bench.set_defaults(run=run_bench)

    script = commands.add_parser("script", help="print forge.py, to keep and to change")
    script.set_defaults(run=run_script)
    return parser


def run_train(options: argparse.Namespace) -> int:
    from rrlforge import config, forge, report, runs

    names = {f.name for f in dataclasses.fields(GRPOConfig)}
    given = {k: v for k, v in vars(options).items() if k in names}
    if options.resume and not options.out:
        raise ForgeError("--resume needs --out FOLDER: which run should go on?")
    base = config.to_dict(runs.load_config(options.out)) if options.resume else {}
    cfg = from_dict({**base, **(PRESETS[options.preset] if options.preset else {}), **given})
    stem = Path(cfg.model).name or "run"
    folder = Path(options.out or f"runs/{stem}-{time.strftime('%Y%m%d-%H%M%S')}")
    try:
        forge.train(cfg, folder, options.resume)
    except KeyboardInterrupt:
        if (folder / "config.json").exists():
            print(f"rrlforge: stopped; go on with: rrlforge train --resume --out {folder}", file=sys.stderr)
            return 130
        raise
    picture = report.save_training_curve(folder)
    print(report.summary(folder))
    print(f"run {folder} · curve {picture} · model {folder / 'model'}")
    return 0


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


def run_vram(options: argparse.Namespace) -> None:
    import json

    from rrlforge import hardware, vram

    try:
        card_gib = float(options.card)
    except ValueError:
        card_gib = hardware.card(options.card).cuda_gib
    names = {f.name for f in dataclasses.fields(vram.Plan)} - {"shape", "card_gib"}
    plan = vram.Plan(vram.find_shape(options.model), card_gib=card_gib, **{k: v for k, v in vars(options).items() if k in names})
    print(json.dumps({**plan.ledger(), "verdict": vram.verdict(plan.flat())}, indent=1) if options.json else vram.report(plan))


def run_bench(options: argparse.Namespace) -> None:
    import tempfile

    import torch

    from rrlforge import engines, files, hardware, models, throughput, vram

    try:
        concurrency = tuple(int(c) for c in options.concurrency.split(","))
    except ValueError:
        raise ForgeError(f"--concurrency {options.concurrency!r}: whole numbers with commas, such as 1,8,32") from None
    throughput.check_sweep(concurrency, options.prompt_tokens, options.new_tokens, options.repeats)
    card = hardware.card(options.card) if options.card else None
    folder, config = models.model_folder(options.model), models.load_config(options.model)
    shape, longest = vram.shape_of_config(config.to_dict(), options.model), options.prompt_tokens + options.new_tokens
    if longest > config.max_position_embeddings:
        raise ForgeError(f"{longest} tokens a request, the model has {config.max_position_embeddings} positions: lower --prompt-tokens "
                         "or --new-tokens")
    if options.engine == "vllm":
        with tempfile.TemporaryDirectory() as view:
            engine = engines.VLLMEngine(throughput.without_end(folder, view), [], longest, options.engine_gib, max_rows=max(concurrency))
    else:
        engine = engines.HFEngine(models.load_model(options.model)[0], [], 0, max_rows=max(concurrency))
    if card is None and torch.cuda.is_available():
        card = hardware.find(torch.cuda.get_device_name(0), torch.cuda.get_device_properties(0).total_memory / 2**30)
    size = 4 if not torch.cuda.is_available() else 2
    points = []
    for point in throughput.sweep(lambda prompts, limit: engine.generate(prompts, 1, engines.Sampling(limit, logprobs="none")).tokens,
                                  shape.vocab, concurrency, options.prompt_tokens, options.new_tokens, options.repeats, options.seed):
        points.append(dataclasses.asdict(point))
        ceiling = card and throughput.roofline(shape, point.concurrency, throughput.mean_context(point.prompt_tokens, point.new_tokens),
                                               card.bandwidth_gb_s, card.bf16_tflops, size)
        print(throughput.line(point, ceiling), flush=True)
    if options.out:
        files.write_json(options.out, {"model": Path(options.model).name, "engine": options.engine, "card": card.name if card else "", "points": points})
        print(f"saved {options.out}")
    engine.close()


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
        print("rrlforge: stopped", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
