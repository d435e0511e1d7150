"""The batch that lessons begin with."""
from rrlforge import models, samples, tasks


def test_a_rollout_pairs_every_completion_with_its_problem(monkeypatch):
    tokenizer = models.character_tokenizer()
    model = models.untrained(models.Recipe()).eval()
    monkeypatch.setattr(models, "load_model", lambda name: (model, tokenizer))
    batch = samples.rollout("tiny", slice(6, 8), 3, max_new_tokens=5)
    problems = tasks.load_task("arith").train[6:8]
    assert batch.problems == problems and batch.golds == [p.answer for p in problems for _ in range(3)]
    assert len(batch.texts) == len(batch.done.token_ids) == 6
    assert batch.prompts == [tasks.prompt_ids(tokenizer, p, batch.task) for p in problems]
    assert all(1 <= len(ids) <= 5 for ids in batch.done.token_ids)
    assert batch.texts == tokenizer.batch_decode(batch.done.token_ids, skip_special_tokens=True)


def test_the_limit_of_the_task_is_the_limit_of_all(monkeypatch):
    from rrlforge import engines

    asked = []
    monkeypatch.setattr(models, "load_model", lambda name: (models.untrained(models.Recipe()), models.character_tokenizer()))
    monkeypatch.setattr(engines.HFEngine, "generate",
                        lambda self, prompts, n, sampling: asked.append(sampling.max_new_tokens) or engines.Completions([], [], []))
    for limit in (0, 10**6, 7):
        samples.rollout("tiny", slice(0, 1), 2, limit)
    assert asked == [48, 48, 7]
