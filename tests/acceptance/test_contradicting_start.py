"""What contradicts a deployment that exists is refused, with words that say why."""


def test_a_second_up_on_the_same_data_is_refused_while_the_first_lives(deployment):
    second = deployment.call("up")
    assert second.returncode == 4
    assert "Another process serves" in second.stderr
    assert second.stdout == ""
    assert deployment.process.running, "the first is not disturbed"


def test_another_partition_count_is_refused(deployment):
    other = deployment.call("init", "--set", "partitions=4")
    assert other.returncode == 7
    assert "'tasks' has 8 partitions; these settings need 4" in other.stderr
    assert "fixed for the life of a deployment" in other.stderr
