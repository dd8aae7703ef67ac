import pytest

from gmc_core.training.staleness import FixedDelay


@pytest.mark.parametrize("delay", [0, 1, 3])
def test_the_behaviour_policy_is_exactly_that_old(delay):
    schedule = FixedDelay(delay)
    for version in range(10):
        schedule.push(version, {})
        assert schedule.behavior.version == max(0, version - delay)
    assert [snapshot.version for snapshot in schedule.snapshots] == list(range(9 - delay, 10))


@pytest.mark.parametrize(("delay", "size"), [(0, 4), (3, 4), (5, 2), (16, 4)])
def test_a_batch_of_several_updates_is_sampled_by_one_policy_that_ages(delay, size):
    schedule = FixedDelay(delay, updates_per_batch=size)
    ages = []
    for version in range(40):
        schedule.push(version, {})
        first = version - version % size
        assert schedule.behavior.version == max(0, first - delay)
        ages.append(version - schedule.behavior.version)
    assert ages[-size:] == list(range(delay, delay + size)) and len(schedule.snapshots) == delay + size


def test_a_gap_in_the_versions_is_an_error():
    schedule = FixedDelay(2)
    schedule.push(4, {})
    with pytest.raises(ValueError, match="got 6 after 4"):
        schedule.push(6, {})


def test_bad_delay_and_empty_ring():
    with pytest.raises(ValueError, match="delay=-1"):
        FixedDelay(-1)
    with pytest.raises(ValueError, match="updates_per_batch=0"):
        FixedDelay(1, updates_per_batch=0)
    with pytest.raises(RuntimeError, match="push the initial one"):
        _ = FixedDelay(0).behavior
