from project.replay.schedule import faults, is_doubled


def test_equal_seeds_give_equal_faults() -> None:
    once, again, other = (faults(seed, workers=8, ttl_s=3, until_s=60) for seed in (1, 1, 2))
    assert once == again
    assert once != other


def test_a_freeze_outlasts_the_lease_and_no_worker_is_struck_while_it_is_frozen() -> None:
    planned = faults(3, workers=4, ttl_s=3, until_s=300)
    assert {fault.frozen_s is None for fault in planned} == {True, False}
    assert all(fault.at_s < 300 for fault in planned)
    assert all(fault.frozen_s > 3 for fault in planned if fault.frozen_s is not None)
    for number, fault in enumerate(planned):
        thawed = fault.at_s + (fault.frozen_s or 0)
        assert not any(later.worker == fault.worker and later.at_s < thawed for later in planned[number + 1 :])


def test_about_one_message_in_twenty_is_doubled() -> None:
    assert 350 < sum(is_doubled(1, str(customer)) for customer in range(10_000)) < 650
