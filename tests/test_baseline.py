"""What the baseline record keeps of completions that its extractors read differently."""
from rrlforge.measure import baseline
from rrlforge.tasks import Problem


def test_completions_are_kept_where_extractors_disagree_a_few_of_each_kind():
    ends_elsewhere = r"\boxed{21} years old in 3 years"
    texts = [ends_elsewhere, "21", r"\boxed{5} or 21", "no number", ends_elsewhere, ends_elsewhere]
    kept = baseline.disagreements(texts, [Problem("how old?", "21")] * 6, each=2)
    assert [one["problem"] for one in kept] == [0, 4, 1, 2]  # nothing where none reads 21; at most two of a kind
    assert kept[0]["found"] == {"rule": "21", "box": "21", "sharps": None, "last number": "3"}
    assert kept[2]["found"]["box"] is None and kept[3]["found"]["last number"] == "21"
