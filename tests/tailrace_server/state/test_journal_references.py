"""Which files of the journal are still needed, against a model that remembers every record."""

from hypothesis import given
from hypothesis import strategies as st

from tailrace_server.state.journal_references import JournalReferences


def test_a_partition_without_records_needs_no_file():
    assert JournalReferences().oldest is None


def test_a_file_is_needed_until_its_last_block_is_flushed():
    homes = JournalReferences()
    homes.block(3, 10)
    homes.block(3, 20)
    homes.block(4, 25)
    homes.manifest_written(0, 19)
    assert homes.oldest == 3
    homes.manifest_written(0, 20)
    assert homes.oldest == 4
    homes.manifest_written(0, 25)
    assert homes.oldest is None


def test_a_control_record_that_came_while_the_manifest_was_written_still_needs_its_file():
    homes = JournalReferences()
    homes.control(1)
    controls = homes.controls
    homes.control(1)
    homes.manifest_written(controls, 0)
    assert homes.oldest == 1
    homes.manifest_written(homes.controls, 0)
    assert homes.oldest is None


STEPS = st.lists(st.sampled_from(["block", "control", "rotate", "begin", "end", "flush"]), max_size=60)


@given(STEPS, st.randoms(use_true_random=False))
def test_no_file_is_given_up_that_holds_something_without_another_home(steps, rnd):
    homes = JournalReferences()
    file = seq = flushed = 1
    records = []  # (file, seq or None) without a home
    begun = None
    for step in steps:
        if step == "block":
            seq += rnd.randint(1, 5)
            homes.block(file, seq)
            records.append((file, seq))
        elif step == "control":
            homes.control(file)
            records.append((file, None))
        elif step == "rotate":
            file += 1
        elif step == "begin":
            begun = (homes.controls, flushed, [record for record in records if record[1] is None])
        elif step == "flush":
            flushed = rnd.randint(flushed, seq)
        elif begun is not None:
            controls, upto, covered = begun
            homes.manifest_written(controls, upto)
            for record in covered:
                records.remove(record)
            records = [record for record in records if record[1] is None or record[1] > upto]
            begun = None
        assert homes.oldest == min((record[0] for record in records), default=None)
