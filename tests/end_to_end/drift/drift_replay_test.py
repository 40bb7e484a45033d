"""`tandem drift replay` on captures of real runs: compared with torch's autograd for the loss of each method,
without any mismatch, with thresholds from a baseline (lr = 0) run, and refused input."""
import json
import shutil

import numpy as np
import pytest
import small_run
import torch
import transformers
from safetensors.numpy import load_file


def replay(capture, *arguments):
    return small_run.drift("replay", capture, *arguments)


def rows(result):
    return {(row["method"], row["threshold"]): row for row in result["rows"]}


@pytest.fixture(scope="module")
def stale(model, tmp_path_factory):
    """A staleness of four versions, with a learning rate that changes the policy by about a tenth of a nat."""
    return small_run.capture_of(tmp_path_factory.mktemp("stale"), model, steps=6, max_staleness=4,
                                prompts_per_step=12, push={"hold_back_versions": 4},
                                optimizer={"learning_rate": 5e-5})


@pytest.fixture(scope="module")
def null(model, tmp_path_factory):
    return small_run.capture_of(tmp_path_factory.mktemp("null"), model, steps=1, prompts_per_step=16,
                                engine={"dtype": "bf16"}, optimizer={"learning_rate": 0})


class Autograd:
    """The batch of a capture in the forward pass of transformers, and the gradient of any loss of its log-probs."""

    def __init__(self, capture, model):
        self.columns = load_file(capture / "tensors.safetensors")
        facts = json.loads((capture / "manifest.json").read_text())
        step = next(w for w in facts["weights"] if w["version"] == facts["proximal_version"])
        self.network = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
        masters = {name: torch.tensor(value) for name, value in load_file(capture / step["masters"]).items()}
        missing, unexpected = self.network.load_state_dict(masters, strict=False)
        assert not unexpected and set(missing) <= {"lm_head.weight"}
        self.mu, self.pi = (torch.tensor(self.columns[name]).double()
                            for name in ("behaviour_logprobs", "proximal_logprobs"))
        self.advantages = torch.tensor(self.columns["advantages"]).double()
        self.ends = self.columns["token_offsets"]
        self.logprobs = torch.cat([self.score(s) for s in range(len(self.columns["group"]))]).double()
        assert (self.logprobs.detach() - self.pi).abs().max() < 1e-4

    def score(self, s):
        group = self.columns["group"][s]
        prompt = self.columns["prompt_ids"][slice(*self.columns["prompt_offsets"][group:group + 2])]
        ids = self.columns["token_ids"][self.ends[s]:self.ends[s + 1]]
        row = torch.tensor(np.concatenate([prompt, ids]), dtype=torch.long)
        logits = self.network(row[None]).logits[0, len(prompt) - 1:-1]
        return torch.log_softmax(logits.float(), -1).gather(1, row[len(prompt):, None])[:, 0]

    def over_completions(self, values, function):
        """The value of `function` for each completion, repeated for each of its tokens."""
        parts = [values[a:b] for a, b in zip(self.ends[:-1], self.ends[1:], strict=True)]
        return torch.cat([function(part).expand(len(part)) for part in parts])

    def gradient(self, loss):
        self.network.zero_grad()
        loss.backward(retain_graph=True)
        return torch.cat([p.grad.flatten().double() for p in self.network.parameters()])


def losses(a):
    """(method, threshold) -> the loss as in its paper, where r is from the policy that has the gradient."""
    w = (a.pi - a.mu).exp()
    product = a.over_completions(a.pi - a.mu, lambda d: d.sum().exp())
    mean = a.over_completions(a.pi - a.mu, lambda d: d.mean().exp())
    length = a.over_completions(w, lambda d: torch.tensor(float(len(d))).double())
    r, whole = (a.logprobs - a.pi).exp(), (a.logprobs - a.mu).exp()
    whole_product = a.over_completions(a.logprobs - a.mu, lambda d: d.sum().exp()).detach()
    count, adv = len(w), a.advantages

    def clipped(ratio):
        return -torch.minimum(ratio * adv, ratio.clamp(0.8, 1.2) * adv)

    def masked(weight, kept):
        return (weight * clipped(r))[kept].sum() / kept.sum()

    taper = torch.where(adv >= 0, torch.ones_like(w), whole_product.clamp(max=1))
    k = torch.where(adv >= 0, 2.0, 3.0)
    soft = (whole_product ** k * (torch.where(adv >= 0, 3.0, 2.0) * (1 - whole_product)).exp())
    s = a.over_completions(a.logprobs - a.pi, lambda d: d.mean().exp())
    return {
        ("off", ""): clipped(r).mean(),
        ("exact_token", ""): (w * clipped(r)).mean(),
        ("exact", ""): (product * clipped(r)).mean(),
        ("tis", "1.2"): (w.clamp(max=1.2) * clipped(r)).mean(),
        ("icepop", "0.8:1.2"): masked(w, (w >= 0.8) & (w <= 1.2)),
        ("mis", "0.5:2"): masked(product, (product >= 0.5) & (product <= 2)),
        ("geo_clip", "0.99:1.01"): (mean.clamp(0.99, 1.01) * clipped(r)).mean(),
        ("negative_geo_gate", "0.6065"): masked(torch.ones_like(w), (adv >= 0) | (mean >= 0.6065)),
        ("bypass", "0.2:0.2"): clipped(whole).mean(),
        ("aipo", "2"): (-whole.detach().clamp(max=2) * adv * a.logprobs).mean(),
        ("topr", ""): (-taper * adv * a.logprobs).mean(),
        ("vespo", "3:2"): (-soft * adv * a.logprobs).mean(),
        ("gspo", ""): (w.clamp(max=2) * clipped(s) / length).sum() / len(a.columns["group"]),
    }


def test_gradients_are_those_of_torchs_autograd_of_each_methods_loss(stale, model):
    code, output, result = replay(stale, "--all")
    assert code == 0, output
    assert result["gradients"]["squared_norm_relative_error"] == 0, "small enough to be exact"
    assert result["gradients"]["max_rescore_difference"] < 1e-4
    batch, found = Autograd(stale, model), rows(result)
    gradients = {key: batch.gradient(loss) for key, loss in losses(batch).items()}
    off = gradients[("off", "")]
    cosines = []
    for key, gradient in gradients.items():
        row = found[key]
        assert row["gradient_norm"] == pytest.approx(gradient.norm().item(), rel=2e-3), key
        cosine = (gradient @ off / gradient.norm() / off.norm()).item()
        assert row["cosine_to_off"]["value"] == pytest.approx(cosine, abs=1e-3), key
        cosines.append(cosine)
    assert sum(cosine < 0.999 for cosine in cosines) >= 6, "the methods differ on this batch"


def test_shares_and_weights_are_those_of_the_columns(stale):
    code, output, result = replay(stale, "--methods", "icepop,token_clip", "--thresholds", "0.9:1.1")
    assert code == 0, output
    assert [row["method"] for row in result["rows"]] == ["off", "exact_token", "exact", "icepop", "token_clip"]
    columns = load_file(stale / "tensors.safetensors")
    w = np.exp(columns["proximal_logprobs"].astype(float) - columns["behaviour_logprobs"])
    adv = columns["advantages"]
    used, inside = adv != 0, (w >= 0.9) & (w <= 1.1)
    icepop, clip = result["rows"][3:]
    assert 0 < icepop["kept"]["value"] < 1
    assert icepop["kept"]["value"] == pytest.approx(inside[used].mean())
    assert icepop["kept_negative"]["value"] == pytest.approx(inside[adv < 0].mean())
    assert icepop["kept"]["low"] < icepop["kept"]["value"] < icepop["kept"]["high"]
    u = np.clip(w, 0.9, 1.1)
    assert clip["mean_weight_positive"]["value"] == pytest.approx(u[adv > 0].mean(), rel=1e-5)
    assert clip["ess_fraction"]["value"] == pytest.approx(u[used].sum() ** 2 / used.sum() / (u[used] ** 2).sum())
    assert sum(bucket["tokens"] for bucket in icepop["by_length"]) == used.sum()


def test_in_an_exact_baseline_run_every_method_is_no_correction(model, tmp_path):
    capture = small_run.capture_of(tmp_path, model, "--numerics", "exact", dtype="bf16", engine={"dtype": "bf16"},
                                   prompts_per_step=8)
    code, output, result = replay(capture, "--all")
    assert code == 0, output
    assert len(result["rows"]) > 80
    for row in result["rows"]:
        key = (row["method"], row["threshold"])
        assert row["kept"]["value"] == 1 and row["mean_weight_negative"]["value"] == pytest.approx(1), key
        assert row["ess_fraction"]["value"] == pytest.approx(1), key
        if row["method"] not in ("gspo", "sapo"):  # the mean over completions is another mean of the same gradients
            for reference in ("off", "exact_token", "exact"):
                assert row[f"cosine_to_{reference}"]["value"] == pytest.approx(1, abs=1e-9), key
            assert row["norm_ratio_to_off"]["value"] == pytest.approx(1, abs=1e-9), key
    code, output, _ = replay(capture, "--methods", "tis", "--null", str(capture))
    assert code == 0 and "the baseline's drift is exactly 0" in output


def test_thresholds_come_from_a_null_at_the_stated_rate(stale, null):
    code, output, result = replay(stale, "--null", str(null), "--null-rate", "0.1,0.01")
    assert code == 0, output
    chosen = {(row["method"], row["null_rate"]): row for row in result["rows"] if row["null_rate"] > 0}
    columns = load_file(null / "tensors.safetensors")
    delta = columns["proximal_logprobs"].astype(float) - columns["behaviour_logprobs"]
    w = np.sort(np.exp(delta))
    for rate in (0.1, 0.01):
        beyond = int((len(w) + 1) * rate + 1e-9)
        assert float(chosen[("tis", rate)]["threshold"]) == pytest.approx(max(1, w[-beyond]), rel=1e-12)
        assert chosen[("tis", rate)]["null_share"] <= rate
    assert result["null"]["delta_standard_deviation"] == pytest.approx(delta.std(ddof=1), rel=1e-6)
    z, noise = map(float, chosen[("z_gate", 0.1)]["threshold"].split(":"))
    sums = np.add.reduceat(delta, columns["token_offsets"][:-1])
    tokens = np.diff(columns["token_offsets"])
    statistic = np.sort(np.abs(sums / tokens + noise ** 2 / 2) * np.sqrt(tokens) / noise)
    assert z == pytest.approx(statistic[-int((len(tokens) + 1) * 0.1)], rel=1e-6)
    # 64 completions are too few for a share of one percent; tokens are enough.
    assert ("z_gate", 0.01) not in chosen and ("icepop", 0.01) in chosen
    assert any("takes 99" in note for note in result["null"]["notes"])
    assert "on baseline %" in output and "@10%" in output


def test_a_run_that_trained_is_no_null(stale, null):
    code, output, _ = replay(null, "--null", str(stale))
    assert code == 3 and "is not a baseline" in output and "learning_rate 0" in output


def test_what_is_wrong_with_the_command_line_is_said_before_anything_is_read(tmp_path):
    for arguments, words in ((("--methods", "tiss"), "no method 'tiss'"),
                             (("--thresholds", "2"), "name the methods"),
                             (("--methods", "topr", "--thresholds", "2"), "topr has no threshold"),
                             (("--methods", "icepop", "--thresholds", "2"), "correction.min_weight:correction.max"),
                             (("--null-rate", "0.1"), "--null")):
        code, output, _ = replay(tmp_path / "nowhere", *arguments)
        assert code == 2 and words in output, output
    code, output, _ = replay(tmp_path / "nowhere")
    assert code == 3 and "no such capture" in output


def test_a_capture_that_is_not_comparable_gets_the_fault_and_no_number(stale, tmp_path):
    capture = tmp_path / stale.name
    shutil.copytree(stale, capture)
    (tmp_path / "weights").symlink_to(stale.parent / "weights")
    facts = json.loads((capture / "manifest.json").read_text())
    drew = int(load_file(capture / "tensors.safetensors")["weight_version"][0])
    (weights,) = (weights for weights in facts["weights"] if weights["version"] == drew)
    weights["served"]["model.norm.weight"] = "0" * 32
    (capture / "manifest.json").write_text(json.dumps(facts))
    code, output, result = replay(capture)
    assert code == 3 and "Not comparable" in output and "|g|" not in output
    assert [finding["fault"] for finding in result["findings"]] == ["weights_differ"] and "rows" not in result
