import pytest

from drafter_jobs.shared_prefix import shared_prefix


@pytest.mark.parametrize(
    ("rows", "length"),
    [
        ([[1, 2, 3], [1, 2, 4, 5]], 2),
        ([[1, 2, 3], [1, 2, 3, 4]], 2),
        ([[1, 2, 3], [1, 2, 3]], 2),
        ([[1, 2], [2, 2]], 0),
        ([[1], [1, 2]], 0),
        ([[5, 1, 9], [5, 3, 9], [5, 2, 9]], 1),
    ],
)
def test_each_row_keeps_a_token(rows: list[list[int]], length: int) -> None:
    assert shared_prefix(rows) == length
