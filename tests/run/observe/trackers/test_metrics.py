"""What trackers are sent of an evaluation."""

from hornbook.run.observe.trackers.metrics import of_evaluation


def test_tasks_are_sent_without_errors_and_counts() -> None:
    task = {"accuracy": 0.5, "accuracy_se": 0.1, "items": 40, "digest": "0f"}
    found = dict(of_evaluation({"all": {"loss": 2.0}, "sources": {}, "tasks": {"copy": task}}))
    assert found == {"validation/loss": 2.0, "tasks/accuracy/copy": 0.5}
