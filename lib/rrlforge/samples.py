"""A batch of completions of training problems, to be looked at: what lessons after L2-1 begin with."""
from __future__ import annotations

from dataclasses import dataclass

from rrlforge import engines, models, tasks
from rrlforge.config import GRPOConfig


@dataclass(frozen=True)
class Batch:
    """Completions, prompt-major: text i answers problem i // group_size. `golds` is as long as `texts`."""

    model: object
    tokenizer: object
    task: tasks.Task
    problems: list[tasks.Problem]
    prompts: list[list[int]]
    done: engines.Completions
    texts: list[str]
    golds: list[str]


def rollout(name: str, which: slice, group_size: int, max_new_tokens: int = 0) -> Batch:
    """Load model `name` and sample `group_size` completions of each problem in the slice `which` of its task.

    The task is arith for tiny and GSM8K for the rest. `max_new_tokens` lowers the task's own limit; 0 leaves it.
    """
    model, tokenizer = models.load_model(name)
    task = tasks.load_task(GRPOConfig(model=name).task_name)
    engine = engines.HFEngine(model, models.end_token_ids(model, tokenizer), tokenizer.pad_token_id)
    problems = task.train[which]
    prompts = [tasks.prompt_ids(tokenizer, problem, task) for problem in problems]
    limit = min(task.max_new_tokens, max_new_tokens or task.max_new_tokens)
    done = engine.generate(prompts, group_size, engines.Sampling(limit))
    texts = tokenizer.batch_decode(done.token_ids, skip_special_tokens=True)
    golds = [problem.answer for problem in problems for _ in range(group_size)]
    return Batch(model, tokenizer, task, problems, prompts, done, texts, golds)
