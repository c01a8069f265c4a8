"""Tests of the comparisons: `python3 -m unittest testbed.pair.test`."""

import doctest
import re
import unittest

from .. import node
from . import __main__ as lane
from . import times

# Headlines of real runs; of prefill's scheduler the finding that should be one.
HEADLINES = {
    "prefill, tokenizer": [
        "prefill: WARNING: first tokens wait up to 2.984 s between scheduler and tokenizer: median 959.5 us, p90 9.6 ms; 1 of 69 requests above "
        "1.000 s; 97 % of that time was spent waiting on detokenizer->tokenizer (the tokenizer is stopped)",
    ],
    "prefill, detokenizer": [
        "prefill: WARNING: first tokens wait up to 2.970 s between scheduler and tokenizer: median 1.0 ms, p90 2.125 s; 12 of 78 requests above "
        "1.000 s; 99 % of that time was spent waiting on scheduler->detokenizer (the detokenizer is stopped)",
    ],
    "prefill, scheduler": [
        "prefill: WARNING: 98 % of the TTFT of 6 of 56 requests was spent on the way to the scheduler: 1.000 s or more, up to 2.962 s; the "
        "scheduler's thread that receives them was stopped then",
        "prefill: WARNING: the scheduler thread (21533/21533) is stopped by a signal 91 % of the time while 6 frames wait on "
        "tokenizer->scheduler, the oldest for 2.796 s",
    ],
    "decode, tokenizer": [
        "decode: WARNING: 97 % of the TTFT of 4 of 104 requests was spent in the server's socket: 1.000 s or more, up to 3.000 s; the tokenizer was "
        "stopped then",
        "decode: WARNING: ended 22:45:45Z: the tokenizer thread (2676/2676) is stopped by a signal 97 % of the time while 32 frames wait on "
        "detokenizer->tokenizer, the oldest for 2.631 s",
    ],
    "decode, detokenizer": [
        "decode: WARNING: first tokens wait up to 2.984 s between scheduler and tokenizer: median 1.2 ms, p90 94.6 ms; 4 of 90 requests above "
        "1.000 s; 91 % of that time was spent waiting on scheduler->detokenizer (the detokenizer is stopped)",
    ],
    "decode, scheduler": [
        "decode: WARNING: the scheduler sent no frame for 3.029 s while 11 streams were open (usual time between two chunks of a stream: 12.1 ms); "
        "its main thread ran 1 % of that time",
        "decode: WARNING: ended 23:04:11Z: the scheduler thread (21545/21545) is stopped by a signal 100 % of the time while 4 frames wait on "
        "tokenizer->scheduler, the oldest for 2.888 s",
    ],
    "slow transfer": [
        "decode: CRITICAL: 99 % of the TTFT of 19 of 20 requests was spent in the transfer of the cache: 1.000 s or more, up to 5.004 s",
    ],
    "overloaded decode": [
        "decode: WARNING: 93 % of the TTFT of 94 of 141 requests was spent in the decode server's queue: 1.000 s or more, up to 3.023 s",
    ],
    "retries": [
        "decode: WARNING: 3 requests were aborted in place of an earlier one with the same rid: the tokenizer sends an abort 2.000 s after a "
        "response has ended, which ends whatever has its rid by then; ed39cdc0a4a048aca6c537f6ddb9f6a0 1.783 s after its dispatch",
    ],
    # None of the faults.
    None: [
        "decode: HEALTHY: no warnings",
        "prefill: WARNING: 98 % of the TTFT of 5 of 105 requests was spent in the server's socket: 1.000 s or more, up to 2.933 s; the tokenizer was "
        "not running then",
        "prefill: WARNING: 97 % of the TTFT of 12 of 52 requests was spent on the way to the scheduler: 1.000 s or more, up to 2.944 s",
        "decode: WARNING: ended 22:54:10Z: the tokenizer thread (11295/11295) is waiting for a CPU 63 % of the time while 116 frames wait on "
        "detokenizer->tokenizer, the oldest for 590.3 ms (9 % running; 63 % waiting for a CPU, 28 % asleep)",
        "decode: WARNING: the scheduler sent no frame for 2.330 s while 6 streams were open (usual time between two chunks of a stream: 6.0 ms); "
        "its main thread ran 100 % of that time",
    ],
}


class Names(unittest.TestCase):
    def test_each_headline_names_its_fault_only(self):
        for fault, headlines in HEADLINES.items():
            for headline in headlines:
                found = [name for name, pattern in lane.NAMES.items() if re.search(pattern, headline)]
                self.assertEqual(found, [fault] if fault else [], headline)


def load_tests(_loader, tests, _pattern):
    for module in (lane, times, node):
        tests.addTests(doctest.DocTestSuite(module))
    return tests


if __name__ == "__main__":
    unittest.main()
