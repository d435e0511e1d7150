"""forge.py against theory, against plain formulas in float64, and against TRL's own loss."""
import copy
import json
import math
import random


import pytest
import torch
from toy import toy_ids, toy_model

from rrlforge import forge
from rrlforge.config import GRPOConfig
from rrlforge.errors import ForgeError
from rrlforge.runs import Run


def make_rows(model, lengths, group_size=2, seed=0, engine_noise=0.0, truncated=()):
    """Rows with random ids and random advantages; engine log-probs are the model's own plus noise."""
    rng, rows = random.Random(seed), []
    for i, length in enumerate(lengths):
        rows.append(forge.Row(toy_ids(rng, 3 + i % 4), toy_ids(rng, length), [0.0] * length, i in truncated,
                              advantage=rng.choice([-1.3, -0.4, 0.7, 1.9])))
    with torch.no_grad():
        logp = forge.forward(model, rows, GRPOConfig())
    for row, own in zip(rows, logp.split(lengths)):
        row.engine_logp = (own + engine_noise * torch.randn(len(own), dtype=own.dtype)).tolist()
    return rows


def gradient(model, rows, cfg, reference=None, limit=1000):
    model.zero_grad(set_to_none=True)
    forge.set_weights(rows, cfg, limit)
    seen = {"ratio": [], "clipped": [], "mismatch": []}
    loss = forge.accumulate(model, reference, rows, cfg, seen)
    return loss, torch.cat([p.grad.flatten() for p in model.parameters()])


def differences(model, row):
    with torch.no_grad():
        return forge.forward(model, [row], GRPOConfig()) - torch.tensor(row.engine_logp, dtype=torch.float64)


# ---------------------------------------------------------------- advantages

def test_one_right_of_eight_gives_the_textbook_advantages():
    scores = torch.tensor([[1.0] + [0.0] * 7], dtype=torch.float64)
    std = forge.group_advantages(scores, "std")[0]
    assert std[0].item() == pytest.approx(0.875 / (scores.std().item() + 1e-4)) == pytest.approx(2.474, abs=1e-3)
    assert forge.group_advantages(scores, "none")[0, 0].item() == pytest.approx(0.875)
    assert std.sum().item() == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("value", [0.0, 1.0, 0.35, -7.1, 1e9])
@pytest.mark.parametrize("size", [2, 7, 8])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_flat_group_gives_exactly_zero(value, size, dtype):
    scores = torch.full((3, size), value, dtype=dtype)
    assert torch.equal(forge.group_advantages(scores), torch.zeros_like(scores))


def test_groups_do_not_see_each_other():
    a, b = torch.tensor([[1.0, 0.0, 0.0]]), torch.tensor([[5.0, 5.0, 2.0]])
    assert torch.equal(forge.group_advantages(torch.cat([a, b])),
                       torch.cat([forge.group_advantages(a), forge.group_advantages(b)]))


# ---------------------------------------------------------------- log-probs

@pytest.mark.parametrize("chunk", [1, 7, 10**6])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_chunked_log_probs_equal_the_plain_ones(chunk, temperature):
    model = toy_model()
    rows = make_rows(model, [5, 1, 12])
    got = forge.forward(model, rows, GRPOConfig(logit_chunk=chunk, temperature=temperature)).split([5, 1, 12])
    for row, logp in zip(rows, got):
        ids = torch.tensor([row.prompt + row.completion])
        plain = (model(input_ids=ids).logits[0, len(row.prompt) - 1:-1] / temperature).log_softmax(-1)
        want = plain.gather(-1, torch.tensor(row.completion)[:, None])[:, 0]
        torch.testing.assert_close(logp.double(), want, rtol=0, atol=2e-6)


def test_the_mask_keeps_an_end_token_that_equals_pad():
    rows = [forge.Row([5], [7, 0], [0.0, 0.0], False), forge.Row([5], [7], [0.0], False)]
    ids, mask = forge.pad(rows, "cpu")
    assert mask.tolist() == [[True, True], [True, False]]
    assert ids.tolist() == [[5, 7, 0], [5, 7, 0]]


# ---------------------------------------------------------------- the loss

def test_on_policy_the_ratio_is_one_and_the_gradient_is_not_zero():
    model = toy_model()
    rows = make_rows(model, [4, 6, 3, 5])
    for row, advantage in zip(rows, [1.0, -1.0, 1.0, -1.0]):
        row.advantage = advantage
    seen = {"ratio": [], "clipped": [], "mismatch": []}
    cfg = GRPOConfig(loss_agg="sequence")
    forge.set_weights(rows, cfg, 10)
    loss = forge.accumulate(model, None, rows, cfg, seen)
    assert torch.equal(torch.cat(seen["ratio"]), torch.ones(18))
    assert loss == pytest.approx(0.0, abs=1e-7)
    assert sum(p.grad.norm() for p in model.parameters()) > 0.1


@pytest.mark.parametrize("ratio,advantage,clipped", [(1.5, 1.0, True), (1.5, -1.0, False), (0.5, 1.0, False), (0.5, -1.0, True),
                                                     (1.1, 1.0, False)])
def test_clip_stops_the_gradient_only_where_the_step_would_go_too_far(ratio, advantage, clipped):
    logp = torch.tensor([math.log(ratio)], dtype=torch.float64, requires_grad=True)
    one = torch.ones(1, dtype=torch.float64)
    loss, was_clipped = forge.grpo_loss(logp, torch.zeros(1, dtype=torch.float64), one * advantage, one, GRPOConfig())
    loss.backward()
    assert was_clipped.item() is clipped
    assert (logp.grad.item() == 0) is clipped
    want = -advantage * (min(max(ratio, 0.8), 1.2) if clipped else ratio)
    assert loss.item() == pytest.approx(want)


def test_clip_higher_moves_only_the_upper_border():
    logp, zero, one = torch.tensor([math.log(1.25)]), torch.zeros(1), torch.ones(1)
    assert forge.grpo_loss(logp, zero, one, one, GRPOConfig())[1].item()
    assert not forge.grpo_loss(logp, zero, one, one, GRPOConfig(clip_high=0.28))[1].item()


def test_k3_is_zero_at_equality_never_negative_and_estimates_kl():
    torch.manual_seed(0)
    p, q = torch.randn(9).double().log_softmax(0), torch.randn(9).double().log_softmax(0)
    assert forge.k3(p, p).abs().max() == 0
    assert (forge.k3(q, p) >= 0).all()
    assert (p.exp() * forge.k3(q, p)).sum().item() == pytest.approx((p.exp() * (p - q)).sum().item())


def test_a_huge_log_ratio_gives_a_finite_loss_and_gradient():
    logp = torch.tensor([-1.0, -900.0, -1.0], requires_grad=True)
    old, ref = torch.tensor([-900.0, -1.0, -1.0]), torch.tensor([-900.0, -1.0, -1.0])
    cfg = GRPOConfig(beta=0.04, importance_cap=2.0)
    loss, _ = forge.grpo_loss(logp, old, torch.tensor([-1.0, 1.0, 1.0]), torch.ones(3), cfg, ref, logp.detach() - 500)
    loss.backward()
    assert torch.isfinite(loss) and torch.isfinite(logp.grad).all()


def test_importance_weight_is_truncated_at_its_cap_and_carries_no_gradient_of_its_own():
    logp, one = torch.zeros(2, requires_grad=True), torch.ones(2)
    loss, _ = forge.grpo_loss(logp, torch.zeros(2), one, one, GRPOConfig(importance_cap=2.0), None,
                              torch.tensor([math.log(0.1), math.log(2.0)]))
    loss.backward()
    assert logp.grad.tolist() == pytest.approx([-2.0, -0.5])


@pytest.mark.parametrize("loss_agg", ["sequence", "token", "constant"])
def test_all_truncated_means_no_loss_and_no_step(loss_agg):
    model = toy_model()
    before = copy.deepcopy(model.state_dict())
    rows = make_rows(model, [4, 4, 4, 4], truncated=(0, 1, 2, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1.0)
    figures = forge.update(model, None, optimizer, rows, GRPOConfig(group_size=2, loss_agg=loss_agg), 4)
    assert figures["loss"] == figures["grad_norm"] == 0.0 and figures["mismatch"] < 1e-6
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())


def test_weights_follow_the_three_formulas():
    rows = [forge.Row([1], [3] * n, [], False) for n in (10, 1000)]
    for agg, want in (("sequence", [1 / 20, 1 / 2000]), ("token", [1 / 1010] * 2), ("constant", [1 / (2 * 1024)] * 2)):
        forge.set_weights(rows, GRPOConfig(loss_agg=agg), 1024)
        assert [r.weight for r in rows] == pytest.approx(want)
    assert 10 / 1010 == pytest.approx(0.01, abs=1e-3)  # token level: the short answer has 1 % of the loss


# ---------------------------------------------------------------- micro-batches

def test_micro_batches_hold_every_row_once_and_keep_the_budget():
    rng = random.Random(3)
    rows = [forge.Row([1] * rng.randint(1, 9), [2] * rng.randint(1, 60), [], False) for _ in range(57)]
    batches = forge.micro_batches(rows, 100)
    assert sorted(map(id, (r for b in batches for r in b))) == sorted(map(id, rows))
    for batch in batches:
        longest = max(len(r.prompt) + len(r.completion) for r in batch)
        assert longest * len(batch) <= 100 or len(batch) == 1


@pytest.mark.parametrize("loss_agg", ["sequence", "token", "constant"])
@pytest.mark.parametrize("beta", [0.0, 0.04])
def test_the_gradient_is_the_same_for_every_budget(loss_agg, beta):
    model, reference = toy_model(), toy_model(1)
    rows = make_rows(model, [10, 1000, 3, 77, 10, 5], engine_noise=0.1, truncated=(4,))
    results = [gradient(model, rows, GRPOConfig(token_budget=b, logit_chunk=c, loss_agg=loss_agg, beta=beta, importance_cap=2.0),
                        reference) for b, c in ((10**6, 10**6), (1, 50), (1100, 1024), (90, 7))]
    for loss, grad in results[1:]:
        assert loss == pytest.approx(results[0][0], rel=1e-5)
        assert ((grad - results[0][1]).norm() / results[0][1].norm()).item() < 1e-5


def test_skipping_flat_groups_changes_nothing():
    model = toy_model()
    rows = make_rows(model, [5, 9, 4, 4])
    rows[2].advantage = rows[3].advantage = 0.0
    cfg = GRPOConfig(group_size=2, lr=0.0, max_grad_norm=1e9)
    full, grad = gradient(model, rows, cfg)
    norm = grad.norm().item()
    model.zero_grad(set_to_none=True)
    figures = forge.update(model, None, torch.optim.SGD(model.parameters(), lr=0.0), rows, cfg, 10)
    assert figures["grad_norm"] == pytest.approx(norm, rel=1e-9)
    assert figures["loss"] == pytest.approx(full, rel=1e-6, abs=1e-9)


def test_mismatch_is_measured_where_the_engine_gave_log_probs_and_moves_nothing():
    model, cfg = toy_model(), GRPOConfig()
    rows = make_rows(model, [4, 9, 7, 5], group_size=2, engine_noise=0.25)
    _, whole = gradient(model, rows, cfg)
    for row in rows[1::2]:
        row.engine_logp = None
    assert torch.equal(gradient(model, rows, cfg)[1], whole)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    figures = forge.update(model, None, optimizer, rows, cfg, 100)
    want = [abs(float(x)) for row in rows[::2] for x in differences(model, row)]
    assert figures["mismatch"] == pytest.approx(sum(want) / len(want), rel=1e-6)
    assert figures["mismatch_max"] == pytest.approx(max(want), rel=1e-6)
    for row in rows:  # the only rows with a signal carry no log-probs: the first of the part stands in
        row.advantage = 0.0
    rows[3].advantage = 1.0
    figures = forge.update(model, None, optimizer, rows, cfg, 100)
    want = [abs(float(x)) for x in differences(model, rows[0])]
    assert figures["mismatch"] == pytest.approx(sum(want) / len(want), rel=1e-6)


def test_two_updates_a_rollout_use_halves_and_the_ratio_moves():
    model = toy_model(dtype=torch.float32)
    rows = make_rows(model, [6] * 8)
    optimizer, steps = torch.optim.AdamW(model.parameters(), lr=1e-2), []
    optimizer.register_step_post_hook(lambda *_: steps.append(1))
    figures = forge.update(model, None, optimizer, rows, GRPOConfig(group_size=2, updates_per_rollout=2, lr=1e-2), 10)
    assert len(steps) == 2
    assert figures["ratio_max"] > 1.001 and figures["ratio_min"] < 1.001
    forge.update(model, None, optimizer, rows, GRPOConfig(group_size=2, updates_per_rollout=2, epochs=3, lr=1e-2), 10)
    assert len(steps) == 2 + 6


# ---------------------------------------------------------------- against TRL

@pytest.mark.parametrize("loss_type,loss_agg", [("grpo", "sequence"), ("dapo", "token"), ("dr_grpo", "constant")])
@pytest.mark.parametrize("beta", [0.0, 0.04])
@pytest.mark.parametrize("off_policy", [False, True])
def test_loss_and_gradient_equal_trl(loss_type, loss_agg, beta, off_policy, tmp_path):
    """TRL 1.16's own _compute_loss on the same tensors, in float64."""
    from accelerate import Accelerator
    from trl import GRPOConfig as TRLConfig
    from trl import GRPOTrainer
    from trl.trainer.utils import add_fused_lm_head

    limit, size = 12, 4
    model, reference, old_model = toy_model(0), toy_model(1), toy_model(0)
    if off_policy:
        with torch.no_grad():
            for p in old_model.parameters():
                p.add_(0.02 * torch.randn_like(p))
    rows = make_rows(old_model, [3, 12, 7, 1], truncated=(1,))
    advantages = torch.tensor([r.advantage for r in rows], dtype=torch.float64)
    cfg = GRPOConfig(group_size=size, loss_agg=loss_agg, beta=beta)
    if off_policy:
        forge.remember(old_model, rows, cfg)
    loss, grad = gradient(model, rows, cfg, reference, limit)

    trainer = GRPOTrainer.__new__(GRPOTrainer)  # its loss alone: no data, no accelerator state
    trainer.args = TRLConfig(output_dir=str(tmp_path), loss_type=loss_type, beta=beta, max_completion_length=limit,
                             num_generations=size, per_device_train_batch_size=size, bf16=False, use_cpu=True, report_to="none",
                             use_bias_correction_kl=False)  # TRL multiplies the KL by the ratio when true; eq. 4 does not
    for name, value in dict(beta=beta, loss_type=loss_type, epsilon_low=0.2, epsilon_high=0.2, max_completion_length=limit,
                            temperature=1.0, use_vllm=False, importance_sampling_level="token", top_entropy_quantile=1.0,
                            off_policy_mask_threshold=None, aux_loss_enabled=False, model_kwarg_keys=set(),
                            current_gradient_accumulation_steps=1, _entropy_bonus_enabled=False, use_liger_kernel=False,
                            _metrics={"train": __import__("collections").defaultdict(list)}).items():
        setattr(trainer, name, value)
    trainer.accelerator, trainer.model = Accelerator(cpu=True), model.train()
    trainer.args.steps_per_generation = 1

    for each in (model, reference, old_model):
        add_fused_lm_head(each, outputs=("log_probs", "entropy"))

    def left(seqs):
        width = max(map(len, seqs))
        return (torch.tensor([[0] * (width - len(s)) + s for s in seqs]),
                torch.tensor([[0] * (width - len(s)) + [1] * len(s) for s in seqs]))

    prompts, prompt_mask = left([r.prompt for r in rows])
    flipped, flipped_mask = left([r.completion[::-1] for r in rows])
    completions, full_mask = flipped.flip(1), flipped_mask.flip(1)
    kept = full_mask * torch.tensor([[0 if r.truncated else 1] for r in rows])

    def padded(which):
        with torch.no_grad():
            return trainer._get_per_token_logps_and_entropies(
                which, torch.cat([prompts, completions], 1), torch.cat([prompt_mask, full_mask], 1), completions.size(1))[0]

    inputs = dict(prompt_ids=prompts, prompt_mask=prompt_mask, completion_ids=completions, completion_mask=kept,
                  advantages=advantages, num_items_in_batch=kept.sum())
    if beta:
        inputs["ref_per_token_logps"] = padded(reference)
    if off_policy:
        inputs["old_per_token_logps"] = padded(old_model)
    model.train()
    model.zero_grad(set_to_none=True)
    theirs = trainer._compute_loss(model, inputs)
    theirs.backward()
    their_grad = torch.cat([p.grad.flatten() for p in model.parameters()])
    assert loss == pytest.approx(theirs.item(), rel=1e-5, abs=1e-9)
    assert ((grad - their_grad).norm() / their_grad.norm()).item() < 1e-5


# ---------------------------------------------------------------- the loop's guards

def test_a_non_finite_loss_stops_the_run_and_names_the_saved_batch(tmp_path):
    model = toy_model(dtype=torch.float32)
    rows = make_rows(model, [4, 4])
    rows[0].advantage = math.inf
    before = copy.deepcopy(model.state_dict())
    figures = forge.update(model, None, torch.optim.AdamW(model.parameters(), lr=1.0), rows, GRPOConfig(group_size=2), 4)
    run = Run(tmp_path / "r", GRPOConfig())
    with pytest.raises(ForgeError, match="step 7: the loss is not finite.*bad-batch-step-7.json"):
        run.check(7, figures, [1.0, 0.0], rows, ["a", "b"])
    assert json.loads((tmp_path / "r" / "bad-batch-step-7.json").read_text())["completions"] == ["a", "b"]
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())


def test_a_non_finite_reward_is_named_as_such(tmp_path):
    with pytest.raises(ForgeError, match="step 0: a reward is not finite"):
        Run(tmp_path / "r", GRPOConfig()).check(0, {"loss": math.nan}, [math.nan, 0.0], [], ["a", "b"])


def test_kl_to_the_start_is_the_same_for_every_budget_that_takes_all_rows():
    model, reference = toy_model(), toy_model(1)
    rows = make_rows(model, [10, 200, 3, 77])
    kls = [forge.measure_kl(reference, rows, GRPOConfig(token_budget=b)) for b in (400, 10**6)]
    assert kls[0] == pytest.approx(kls[1], rel=1e-6) and kls[0] > 0.1
    assert forge.measure_kl(model, rows, GRPOConfig()) == pytest.approx(0.0, abs=1e-9)


def test_a_mismatch_above_its_bound_stops_the_run(tmp_path):
    run = Run(tmp_path / "r", GRPOConfig(max_mismatch=0.1))
    run.check(0, {"loss": 0.0, "mismatch": 0.09}, [1.0], [], [])
    with pytest.raises(ForgeError, match="differ by 0.2 nats"):
        run.check(0, {"loss": 0.0, "mismatch": 0.2}, [1.0], [], [])


def test_forge_stays_within_two_hundred_lines_of_code():
    import tokenize
    from pathlib import Path

    code, previous = set(), tokenize.NEWLINE
    layout = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING,
              tokenize.ENDMARKER}
    with Path(forge.__file__).open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            if token.type in layout:
                previous = token.type if token.type != tokenize.COMMENT else previous
            elif not (token.type == tokenize.STRING and previous in (tokenize.NEWLINE, tokenize.INDENT, tokenize.NL)):
                code.update(range(token.start[0], token.end[0] + 1))
                previous = token.type
    assert len(code) <= 200
