"""The words of notebook 06 on the tuned menu and the studies, tied to the data of the committed figures."""

import json

import numpy as np
import pytest

from gmc_core import load_runs, paths
from gmc_core.reporting.claims import ledger
from gmc_core.reporting.figure_style import load_figure_data, mean_interval
from gmc_core.reporting.figures.study_panels import difference_note
from tests.reporting.closing_words import bullet, closing_text


def paragraph(start):
    return bullet(closing_text("06", "### Each method at its own step size"), start)


class Study:
    """The data of a figure, by the names of its methods and settings."""

    def __init__(self, figure):
        self.data = load_figure_data(figure)
        self.names = [str(name) for name in self.data["names"]]
        self.settings = [str(x) for x in self.data["settings" if "settings" in self.data else "delay"]]

    def __call__(self, key, name, setting=None):
        row = self.data[key][self.names.index(name)]
        return row if setting is None else row[self.settings.index(str(setting))]

    def lost(self, name, setting):
        return int(self("collapsed", name, setting).sum())


def listed(values, form="{}"):
    """1, 2 and 3."""
    *head, last = [form.format(value) for value in values]
    return f"{', '.join(head)} and {last}"


def surely(differences, level=0.95):
    """Whether Student's t interval of these seeds leaves out 0; the claims are judged by the same one."""
    _, low, high, _ = mean_interval(differences[:, None], level=level)
    return bool(low * high > 0)


@pytest.fixture(scope="module")
def menu():
    return Study("fig5_staleness")


def test_what_is_said_of_the_menu(menu):
    text, positive = paragraph("GMC is quick"), slice(1, None)
    core = menu.names[:10]
    area = {name: menu("area_mean", name)[positive, 0].mean() for name in core}
    best = sorted(area, key=area.get, reverse=True)
    assert best[:4] == ["gmc", "is", "tic_truncate", "m2po"]
    assert f"({area['gmc']:.3f}; full IS {area['is']:.3f}, TIC truncate {area['tic_truncate']:.3f}, M2PO" in text
    assert f"M2PO {area['m2po']:.3f}, the others at most {area[best[4]]:.3f})" in text
    lost = {name: [int(n) for n in menu("collapsed", name)[positive].sum(-1)] for name in core}
    assert f"it lost {listed(lost['gmc'])} of five runs at delays 8, 16, 32, 64 and 128" in text
    assert f"TIC truncate lost {listed(lost['tic_truncate'])}" in text
    assert [name for name in core if not any(lost[name])] == ["m2po"]
    slow = menu("area_mean", "m2po")[positive, 0]
    for k in (0, 1):
        assert max(core, key=lambda name: menu("area_mean", name)[positive, 0][k]) == "m2po"
    assert "({:.3f} and {:.3f})".format(*slow[:2]) in text and "({:.3f} and {:.3f})".format(*slow[3:]) in text


def test_what_is_said_of_the_verdict(menu):
    text = paragraph("Claim C8a")
    (verdict,) = [row for row in ledger() if row.id == "C8a"]
    assert f"**Claim C8a: {verdict.verdict}" in text
    assert f"step {menu('step_size', 'gmc', 64):g}, lost {['no', 'one', 'two'][menu.lost('gmc', 64)]} of five" in text
    assert menu.lost("tic_truncate", 64) == 1
    assert not any(menu.lost(name, 64) for name in ("is", "water_filling", "m2po", "topr"))
    at_128 = {name: menu("final_difference_mean", name, 128) for name in menu.names[:10]}
    assert f"ended at {menu('final_mean', 'gmc', 128)[0]:.3f}" in text and menu.lost("gmc", 128) == 0
    assert f"by {-at_128['m2po'][0]:.3f} and {-at_128['ppo_clip'][0]:.3f}" in text
    assert {name for name, (mean, _, _) in at_128.items() if mean < 0} == set(menu.names[:10]) - {"gmc", "snis"}
    stable = [name for name in menu.names[1:10] if name not in ("cispo", "uncorrected")]
    sure = [name for name in stable if surely(menu("final_difference", name, 128))]
    assert sorted(sure) == ["m2po", "ppo_clip"] and menu.lost("snis", 64) == 2


def test_what_the_readme_says_of_speed(menu):
    """From delay 32 on GMC is among the quickest rules: of the core ones three at most have its area or more."""
    for delay in (32, 64, 128):
        area = [menu("area_mean", name, delay)[0] for name in menu.names[:10]]
        assert sum(value >= area[0] for value in area) <= 3


def test_what_the_readme_says_of_bias_and_step_size():
    flat = " ".join((paths.ROOT / "README.md").read_text(encoding="utf-8").split())
    data, smaller = load_figure_data("figS10_fidelity"), Study("figS14_smaller_steps")
    place = list(data["delay"]).index(64), list(data["group_size"]).index(16)
    gmc, truncate = (
        data["bias_median"][[str(rule) for rule in data["rules"]].index(rule)][place][0]
        for rule in ("gmc", "tic_truncate")
    )
    assert f"squared bias of GMC's mean gradient is {100 * gmc:.0f} % of the fresh one's square" in flat
    assert f"truncation {100 * truncate:.0f} %" in flat
    there = np.isfinite(data["bias"][0][place])
    assert f"{(there & (data['update'] <= 64)).sum()} of these {there.sum()} probes lie in the start-up" in flat
    assert sum(smaller.lost("gmc", f"{start} half") for start in ("weak", "strong")) == 0
    half = Study("figS15_half_steps")
    lost = {part: sum(half.lost("gmc", f"delay {delay} {part}") for delay in (16, 64)) for part in ("tuned", "half")}
    assert (
        lost == {"tuned": 5, "half": 1} and "one of ten from the start of the main comparison, instead of five" in flat
    )
    for start, least in (("weak", 0), ("strong", -0.03)):
        best = max(smaller("area_mean", "tic_truncate", f"{start} {part}")[0] for part in smaller.data["parts"])
        assert least <= smaller("area_mean", "gmc", f"{start} half")[0] - best < 0.03


def test_what_is_said_of_the_step(menu):
    text, mixture = paragraph("The step"), Study("figS11_mixture")
    assert mixture("learning_rate", "gmc", 64) == 0.05 and mixture.lost("gmc", 64) == 0
    assert (
        f"none of ten (area {mixture('area_mean', 'gmc', 64)[0]:.3f}; {menu('area_mean', 'gmc', 64)[0]:.3f} at" in text
    )


def test_what_is_said_of_the_seeds(menu):
    text, mixture = paragraph("Five seeds"), Study("figS11_mixture")
    assert menu("step_size", "gmc", 32) == mixture("learning_rate", "gmc", 32) == 0.05
    assert (menu.lost("gmc", 32), mixture.lost("gmc", 32)) == (0, 8)
    assert "none of five" in text and "8 of ten" in text


def test_what_is_said_of_mean_and_shape():
    text, study = paragraph("Shape, not mean"), Study("figS9_mean_and_shape")
    for rule in ("tic_truncate", "tic_mask", "ppo_clip", "uncorrected"):
        for delay in (32, 64):
            variant = f"{rule} at the mean of gmc"
            assert difference_note(study("area_difference_mean", variant, delay)) in text, (rule, delay)
            assert surely(study("area_difference", variant, delay)) is (rule != "tic_truncate")
    truncate = [study("area_difference", "tic_truncate at the mean of gmc", delay) for delay in (32, 64)]
    assert [int((seeds < 0).sum()) for seeds in truncate] == [5, 3]
    for rule in ("tic_truncate", "tic_mask"):
        low = [study("area_difference_mean", f"gmc at the mean of {rule}", delay) for delay in (32, 64)]
        assert listed([row[0] for row in low], "{:+.3f}") in text


def test_what_is_said_of_fidelity(menu):
    text = paragraph("The gradient of GMC") + paragraph("Its single updates")
    data = load_figure_data("figS10_fidelity")
    rules, middle = [str(rule) for rule in data["rules"]], list(data["group_size"]).index(16)
    assert list(data["delay"]) == [16, 64] and data["resolved"][:, middle].sum() == 30 and "30 probes" in text

    def median(measure, rule, delay=64, size=16):
        place = rules.index(rule), list(data["delay"]).index(delay), list(data["group_size"]).index(size)
        return data[f"{measure}_median"][place][0]

    def below(delay):
        """GMC's bias against that of truncation, probe by probe: how often smaller, of how many."""
        row = list(data["delay"]).index(delay)
        gmc, truncate = (data["bias"][rules.index(name), row, middle] for name in ("gmc", "tic_truncate"))
        return f"{(gmc < truncate).sum()} of {np.isfinite(gmc).sum()}"

    bias = {rule: median("bias", rule) for rule in rules}
    assert f"{bias['gmc']:.2f} for GMC, {bias['tic_truncate']:.2f} for TIC truncate, {bias['tic_mask']:.2f} for" in text
    assert f"{bias['cispo']:.2f} for CISPO and {bias['ppo_clip']:.2f} for PPO clip" in text
    assert f"(cosine {median('cosine', 'ppo_clip'):.2f})" in text
    assert f"uncapped, have {bias['is']:.2f} and {bias['snis']:.2f}" in text
    assert f"on {below(64)} probes, at delay 16 on {below(16)}." in text
    assert f"With GMC's mean truncation keeps {bias['tic_truncate at the mean of gmc']:.2f}" in text
    assert round(bias["tic_truncate"] / bias["gmc"]) == 13 and "thirteen times" in text
    assert f"Without the stop-gradient on the cap it is {bias['gmc (cap not detached)']:.2f}" in text
    cosine = {rule: median("update_cosine", rule) for rule in rules}
    assert set(sorted(cosine, key=cosine.get)[-2:]) == {"gmc", "water_filling"}
    pair, others = (cosine[n] for n in ("gmc", "water_filling")), (cosine["snis"], cosine["tic_truncate"])
    assert f"(mean cosine {listed(pair, '{:.2f}')}; " in text
    assert "self-normalised IS {:.2f}, TIC truncate {:.2f})".format(*others) in text
    later = data["update"] > 64
    late = {
        (measure, name): data[measure][rules.index(name), 1, middle][later]
        for measure in ("bias", "update_cosine")
        for name in ("gmc", "tic_truncate")
    }
    number = int(np.isfinite(late["bias", "gmc"]).sum())
    smaller = int((late["bias", "gmc"] < late["bias", "tic_truncate"]).sum())
    assert f"Of the {number + 8} probes 8 lie in the start-up" in text
    assert f"on the {number} later ones GMC's bias is the smaller one {smaller} times" in text
    assert np.isfinite(data["bias"][0, 1, middle][~later]).sum() == 8
    points = [np.nanmedian(late["update_cosine", name]) for name in ("gmc", "tic_truncate")]
    pair = [np.nanmedian(late["bias", name]) for name in ("gmc", "tic_truncate")]
    assert "(median {:.2f}, truncation {:.2f}), but".format(*pair) in text
    at_16 = [data["bias"][rules.index(name), 0, middle][data["update"] > 16] for name in ("gmc", "tic_truncate")]
    assert (
        "On the {} later ones at delay 16 it is {:.2f} against {:.2f}.".format(
            np.isfinite(at_16[0]).sum(), *(np.nanmedian(values) for values in at_16)
        )
        in text
    )
    assert points[0] < points[1] and "(median {:.2f}, truncation {:.2f})".format(*points) in text
    early = {rule: median("update_cosine", rule, 16) for rule in rules}
    assert max(early, key=early.get) == "tic_truncate"
    assert f"({early['tic_truncate']:.2f}, GMC {early['gmc']:.2f})" in text
    sizes = "{:.2f}, {:.2f}, {:.2f}".format(*(median("bias", "gmc", size=size) for size in (8, 16, 32)))
    assert f"From $G$ = 8 to 32 GMC's bias stays at what the probes resolve ({sizes})" in text
    lost = {name: menu("collapsed", name)[1:].sum() for name in ("gmc", "tic_truncate")}
    assert lost["tic_truncate"] < lost["gmc"]


def test_what_is_said_of_the_optimizer():
    text, study = paragraph("Long updates"), Study("figS1_optimizer")
    assert study.data["final"].shape[-1] == 3
    bare = {name: study.lost(name, "SGD, no clip") for name in study.names}
    assert bare == {"gmc": 3, "tic_truncate": 1, "tic_mask": 0, "snis": 3, "ppo_clip": 2}
    assert study.data["collapsed"][:, [study.settings.index(f"AdamW {rate}") for rate in ("3e-5", "1e-4")]].sum() == 0
    bounded = [int(study.data["collapsed"][:, study.settings.index(name)].sum()) for name in study.settings[:3:2]]
    assert study.settings[:3:2] == ["SGD, clip 0.3", "SGD, length ≤ 0.03"] and bounded == [2, 3]
    assert "lost 3 of 15 runs and SGD with the clip 2" in text
    finals = [study("final_mean", name, "AdamW 1e-4")[0] for name in ("gmc", "snis", "tic_truncate", "tic_mask")]
    assert f"{listed(finals, '{:.3f}')} " in text and f"{study('final_mean', 'ppo_clip', 'AdamW 1e-4')[0]:.3f}" in text
    updates, followed = study.data["length_updates"][0], study.data["length_followed"][0]
    edges = study.data["length_edges"]
    assert followed[-1] == updates[-1] and f"All {updates[-1]} updates longer than {edges[-2]:g}" in text
    short = edges[:-1] < 0.1
    assert (
        f"of {updates[short].sum()} shorter than 0.1 {100 * followed[short].sum() / updates[short].sum():.1f} %" in text
    )


def test_what_is_said_of_the_threshold():
    text, study = paragraph("Threshold"), Study("figS3_threshold")
    assert study.settings == ["0", "0.1", "0.2", "0.5", "1", "3"]
    for name in ("gmc", "tic_truncate", "water_filling"):
        assert listed([study.lost(name, setting) for setting in study.settings]) in text, name
    mask = [study("area_mean", "tic_mask", setting)[0] for setting in study.settings]
    assert (np.diff(mask) > 0).all() and f"from {mask[0]:.3f} to {mask[-1]:.3f}" in text
    area = {name: study("area_mean", name, 0.1)[0] for name in study.names}
    assert max(area, key=area.get) == "gmc" and f"{area['gmc']:.3f}" in text


def test_what_is_said_of_the_mixture():
    text, study = paragraph("The mixture"), Study("figS11_mixture")
    rows = [f"mixture {alpha}" for alpha in ("0.1", "0.2", "0.5")]
    assert f"{listed([study.lost(row, 32) for row in rows])} of ten" in text and "8 with GMC" in text
    assert study.lost("gmc", 32) == 8
    bootstrapped = [
        (row, delay, key)
        for row in rows
        for delay in (32, 64)
        for key in ("final", "area")
        if np.prod(study(f"{key}_corrected", row, delay)[1:]) > 0
    ]
    assert bootstrapped == [("mixture 0.5", 64, "final")]
    level = 1 - 0.05 / study.data["comparisons"]  # Student's t, corrected likewise
    for row in rows:
        for delay in (32, 64):
            for key in ("final", "area"):
                assert not surely(study(f"{key}_difference", row, delay), level)
    assert "no difference to GMC is surely above 0" in text
    assert difference_note(study("final_corrected", "mixture 0.5", 64)) in text
    assert difference_note(study("area_corrected", "mixture 0.2", 32)) in text


def test_what_is_said_of_advantage_and_normaliser():
    text, study = paragraph("Advantage and normaliser"), Study("figS6_advantage")
    variants = study.settings[:5]
    assert study.data["final"].shape[-1] == 3 and all("detached" in name for name in study.settings[5:])
    for name, label in (("gmc", "GMC"), ("snis", "self-normalised IS"), ("tic_truncate", "TIC truncate"),
                        ("ppo_clip", "PPO clip"), ("tic_mask", "TIC mask")):  # fmt: skip
        area = [study("area_mean", name, variant)[0] for variant in variants]
        assert f"{label} {min(area):.3f} to {max(area):.3f}" in text, name
    lost = {name: [study.lost(name, variant) for variant in variants] for name in study.names}
    assert {name: sorted(lost[name], reverse=True) for name in lost if any(lost[name])} == {
        "tic_truncate": [1, 1, 0, 0, 0], "snis": [1, 1, 0, 0, 0]
    }  # fmt: skip
    assert [study.lost("gmc", setting) for setting in study.settings[5:]] == [1, 0]


def test_what_is_said_of_the_group_size():
    text, study = paragraph("Group size"), Study("figS2_group_size")
    excess = dict(zip(map(str, study.data["excess_rules"]), study.data["excess_mean"][..., 0], strict=True))
    assert (np.diff(excess["gmc"]) < 0).all()
    assert f"from {excess['gmc'][0]:.3f} at $G=4$ to {excess['gmc'][-1]:.3f} at $G=64$" in text
    for rule in ("tic_truncate", "tic_mask"):
        assert f"at {excess[rule].min():.3f} to {excess[rule].max():.3f}" in text
    area = [study("area_mean", "gmc", size)[0] for size in study.settings]
    assert f"mean area is {listed(area, '{:.3f}')} and it" in text
    assert f"lost {listed([study.lost('gmc', size) for size in study.settings])} of three runs" in text
    assert [study.lost("tic_truncate", size) for size in (32, 64)] == [0, 0]
    assert listed([study("area_mean", "tic_truncate", size)[0] for size in (32, 64)], "{:.3f}") in text


def test_what_is_said_of_length():
    text, study = paragraph("Length"), Study("figS4_length")
    assert study.settings == ["14", "26", "50"] and study.data["final"].shape[-1] == 2
    area = {name: listed([study("area_mean", name, n)[0] for n in study.settings], "{:.3f}") for name in study.names}
    assert f"TIC truncate has a mean area of {area['tic_truncate']}, GMC {area['gmc']}," in text
    assert f"self-normalised IS {area['snis']}." in text
    final = {name: study("final_mean", name, 50)[0] for name in study.names}
    assert f"TIC truncate ended at {final['tic_truncate']:.3f}, TIC mask at {final['tic_mask']:.3f} and" in text
    assert f"PPO clip at {final['ppo_clip']:.3f}." in text
    runs = load_runs("length").runs
    long = runs[runs["task_options"].str.contains("24")]
    own, before = long[long["estimator"] == "gmc"]["final_accuracy"], long.groupby("seed")["initial_accuracy"].first()
    assert len(own) == 4 and f"(final accuracy at most {own.max():.3f}, from {before.mean():.3f})" in text
    assert list(study("halved", "gmc").astype(bool)) == [False, True, True]
    assert f"is {listed(study('spread_mean', 'gmc')[:, 0], '{:.2f}')} nats" in text


def test_what_is_said_of_the_starting_accuracy():
    text, study = paragraph("Starting accuracy"), Study("figS5_starting_accuracy")
    lost = {name: [study.lost(name, start) for start in ("weak", "strong")] for name in study.names}
    assert lost == {"gmc": [4, 5], "tic_truncate": [0, 0], "tic_mask": [0, 0], "snis": [5, 5], "ppo_clip": [0, 0]}
    for start in ("weak", "strong"):
        area = {name: study("area_mean", name, start)[0] for name in study.names}
        assert max(area, key=area.get) == "tic_truncate"
        record = json.loads((paths.WARM_STARTS / start / "warm_start.json").read_text())["measured"]
        assert f"({100 * record['accuracy_after_noisy']:.1f} %" in text
    for name, label in (("tic_truncate", "(area "), ("gmc", "GMC ")):
        pair = listed([study("area_mean", name, start)[0] for start in ("weak", "strong")], "{:.3f}")
        assert label + pair in text


def test_what_is_said_of_smaller_steps():
    text, study = paragraph("Smaller steps"), Study("figS14_smaller_steps")
    starts = ("weak", "strong", "digits_24")
    lost = {
        name: [
            [int(np.nansum(study("collapsed", name, f"{start} {part}"))) for part in study.data["parts"]]
            for start in starts
        ]
        for name in ("gmc", "snis", "tic_truncate")
    }
    assert lost["gmc"][:2] == [[4, 0, 0], [5, 0, 0]] and lost["gmc"][2][2] == 1
    assert lost["snis"][0][1:] == [4, 0] and lost["snis"][1][2] == 0 and lost["snis"][2] == [2, 2, 2]
    assert not np.any(lost["tic_truncate"])

    def best(name, start):
        """Mean area at the step size where it is largest, and that step size."""
        parts = [str(part) for part in study.data["parts"]]
        area = {part: study("area_mean", name, f"{start} {part}")[0] for part in parts}
        part = max(area, key=area.get)
        return part, f"{area[part]:.3f}", area[part]

    gmc, truncate, snis = ({start: best(name, start) for start in starts} for name in ("gmc", "tic_truncate", "snis"))
    assert [gmc[start][0] for start in starts] == ["half", "half", "quarter"] and truncate["strong"][0] == "half"
    assert f"from the weak start is {gmc['weak'][1]}, level with the best of truncation ({truncate['weak'][1]})" in text
    assert (
        f"from the strong one {gmc['strong'][1]}, below truncation's {truncate['strong'][1]}, which is surely" in text
    )
    assert f"(by {difference_note(study('area_difference_mean', 'tic_truncate', 'strong half'))})" in text
    assert surely(study("area_difference", "tic_truncate", "strong half"))
    assert snis["weak"][0] == snis["strong"][0] == "quarter"
    assert f"has {snis['weak'][1]} and {snis['strong'][1]}." in text
    assert f"(area {gmc['digits_24'][1]}, truncation at its best {truncate['digits_24'][1]})" in text
    counts = [gmc[start][2] >= truncate[start][2] for start in starts]
    assert counts == [True, False, False] and "counts for GMC from the weak start, against it from the strong" in text


def test_what_is_said_of_half_steps():
    text, study = paragraph("Half of the step"), Study("figS15_half_steps")

    def of(name, delay, part):
        setting = f"delay {delay} {part}"
        return study.lost(name, setting), study("area_mean", name, setting)[0], study("learning_rate", name, setting)

    for part, words in (
        ("half", "GMC lost {} of five runs at delays 16 and 64"),
        ("tuned", "instead of {} at the whole"),
    ):
        assert words.format(listed([of("gmc", delay, part)[0] for delay in (16, 64)])) in text
    went = [f"from {of('gmc', delay, 'tuned')[1]:.3f} to {of('gmc', delay, 'half')[1]:.3f}" for delay in (16, 64)]
    assert f"its area went {listed(went)}." in text
    safe = {delay: [name for name in study.names[1:] if of(name, delay, "half")[0] <= 1] for delay in (16, 64)}
    ahead = {d: [n for n in safe[d] if of(n, d, "half")[1] > of("gmc", d, "half")[1]] for d in safe}
    assert ahead == {16: ["ppo_clip", "m2po"], 64: []} and "counts for it at delay 64" in text
    near = [of(name, 64, "half")[1] for name in ("is", "water_filling", "tic_truncate")]
    assert "(full IS {:.3f}, water-filling {:.3f}, TIC truncate {:.3f}, none".format(*near) in text
    for name in ("is", "water_filling", "tic_truncate"):
        assert not surely(study("area_difference", name, "delay 64 half"))
    assert (
        f"M2PO ({of('m2po', 16, 'half')[1]:.3f}) and PPO clip ({of('ppo_clip', 16, 'half')[1]:.3f}) are surely" in text
    )
    assert all(surely(study("area_difference", name, "delay 16 half")) for name in ("m2po", "ppo_clip"))
    whole = [of(name, 64, "tuned") for name in ("is", "water_filling")]
    assert {rate for *_, rate in whole} == {of("gmc", 64, "half")[2]} and not any(lost for lost, *_ in whole)
    assert f"lost none and have {listed([area for _, area, _ in whole], '{:.3f}')}." in text
