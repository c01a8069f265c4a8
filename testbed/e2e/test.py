"""`python -m unittest testbed.e2e.test`: tests of the comparisons, without an engine."""

import unittest
from types import SimpleNamespace

from .attach import peak
from .checks import Checks, at, longest_wait_ns, order, same_bytes, verdicts
from .clientless import compare as abandoned
from .losses import listed
from .soak import slope


def sends(*ranges: tuple[int, int]) -> list[dict]:
    return [{"sent_ns": first, "accepted_ns": last} for first, last in ranges]


def receives(*ranges: tuple[int, int]) -> list[dict]:
    return [{"called_ns": first, "received_ns": last} for first, last in ranges]


def outcome(sent: list[str], received: list[str]) -> SimpleNamespace:
    sender = SimpleNamespace(sent=[{"on": "output", "hash": hash} for hash in sent])
    receiver = SimpleNamespace(received=[{"hash": hash} for hash in received])
    return SimpleNamespace(senders=[sender], detokenizer=None, receiver=receiver)


class Comparisons(unittest.TestCase):
    def failed(self, compare, *arguments) -> list[str]:
        checks = Checks()
        compare(checks, *arguments)
        return [line.partition(":")[0] for line in checks.failed]

    def test_releases_compare_in_the_order_of_their_publication(self):
        published = ["0.4.6.post4", "0.5.9", "0.5.10rc0", "0.5.10", "0.5.10.post1", "0.5.23"]
        self.assertEqual(published, sorted(reversed(published), key=order))

    def test_the_peak_is_a_range_if_timestamps_overlap(self):
        sent = sends((10, 12), (20, 24))
        self.assertEqual((1, 2), peak(sent, receives((21, 23), (40, 41))))
        self.assertEqual((2, 2), peak(sent, receives((30, 31), (40, 41))))

    def test_slope_fits_a_line_and_its_error_grows_with_noise(self):
        rises, sure = slope([(n / 2, 1000 + 3 * n) for n in range(40)])
        self.assertTrue(abs(rises - 6) < 1e-9 and sure < 1e-6, (rises, sure))
        flat, unsure = slope([(n / 2, 1000 + 50 * (n % 2)) for n in range(40)])
        self.assertLess(abs(flat), unsure)

    def test_lost_repeated_and_reordered_messages_fail(self):
        self.assertEqual([], self.failed(same_bytes, outcome(["a", "b", "c"], ["a", "b", "c"])))
        lost = ["messages that did not reach the tokenizer", "connection 0 to the tokenizer preserved its order"]
        self.assertEqual(lost, self.failed(same_bytes, outcome(["a", "b"], ["a"])))
        repeated = ["messages at the tokenizer that were never sent"]
        self.assertEqual(repeated, self.failed(same_bytes, outcome(["a", "b"], ["a", "b", "b"])))
        reordered = ["connection 0 to the tokenizer preserved its order"]
        self.assertEqual(reordered, self.failed(same_bytes, outcome(["a", "b"], ["b", "a"])))

    def test_a_value_of_another_type_or_an_absent_one_fails(self):
        for got in (1.0, True, None, "1"):
            self.assertEqual(["report n"], self.failed(Checks.matches, {"n": got}, {"n": 1}))
        self.assertEqual(["report n"], self.failed(Checks.matches, {}, {"n": None}))
        self.assertEqual(2, at({"hops": [{"chunks": 2}]}, "hops/0/chunks"))

    def test_warnings_without_a_cause_or_advice_fail(self):
        warning = {"kind": "wire-loss", "severity": "critical", "summary": "", "advice": None}
        failed = ["unexpected warnings", "warnings without advice"]
        self.assertEqual(failed, self.failed(verdicts, {"findings": [warning]}, 0))
        loss = {"kind": "dropped-chunks", "severity": "warning", "summary": "", "advice": "x"}
        report = {"findings": [loss], "chunks": {"tokens_lost": 3}}
        self.assertEqual(["severity of the headline"], self.failed(verdicts, report, 3))

    def test_a_wait_is_measured_by_message(self):
        run = outcome(["a", "b"], ["a", "b"])
        for records, times in ((run.senders[0].sent, (10, 20)), (run.receiver.received, (35, 70))):
            for record, time_ns in zip(records, times):
                record["sent_ns"] = record["received_ns"] = time_ns
        self.assertEqual(50, longest_wait_ns(run))

    def test_places_of_lost_tokens_are_counted_from_zero(self):
        line = {"rid": "r", "ranges": [{"tokens": [1, 2]}, {"tokens": [5, 5]}]}
        self.assertEqual({"r": {0, 1, 4}}, listed({"losses": {"confirmed": {"lines": [line]}}}, "confirmed"))

    def test_missing_and_other_abandoned_requests_fail(self):
        truth = {"r": {"sent": 160, "delivered": 5, "discarded": 155}, "s": {"sent": 60, "delivered": 60, "discarded": 0}}
        row = {"rid": "r", "tokens": 150}
        report = {
            "tokens": {"sent": 220, "delivered": 65},
            "answers": {"client_left": 1},
            "abandoned": {"by": "responses and frames", "requests": 1, "tokens": 150, "longest": [row]},
            "findings": [{"kind": "abandoned-requests"}],
            "verdict": "WARNING: the scheduler continued 1 request whose client had disconnected: ..",
        }
        self.assertEqual([], self.failed(abandoned, report, truth))
        missing = {key: value for key, value in report.items() if key != "abandoned"}
        self.assertIn("rids", self.failed(abandoned, missing, truth))
        other = report | {"abandoned": report["abandoned"] | {"tokens": 160, "longest": [row | {"tokens": 160}]}}
        self.assertEqual(1, len(self.failed(abandoned, other, truth)))


if __name__ == "__main__":
    unittest.main()
