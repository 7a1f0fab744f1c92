"""Two hundred random cases, alike under Tessera, FSDP2 and one process.

    test_differential.py PROGRAM

A failure names its seed; `differential.py PROGRAM --first SEED --count 1 --show`
runs that case alone.
"""
import copy
import sys
import unittest

import differential  # noqa: I001: sets threads before torch is imported
import cases
import compare

FIRST, COUNT = 1, 200
DEADLINE_S = 900


class Differential(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cases = [cases.make_case(s) for s in range(FIRST, FIRST + COUNT)]
        print(f"seeds {FIRST} to {FIRST + COUNT - 1}", flush=True)
        cls.outcomes = differential.train(PROGRAM, cls.cases, DEADLINE_S)

    def check(self, world):
        for case in self.cases:
            if case["world"] == world:
                with self.subTest(seed=case["seed"]):
                    found = differential.settle(
                        PROGRAM, case, self.outcomes[case["seed"]],
                        DEADLINE_S)
                    self.assertFalse(found, "\n".join(found))

    def test_one_rank_is_like_fsdp2_and_one_process(self):
        self.check(1)

    def test_two_ranks_are_like_fsdp2_and_one_process(self):
        self.check(2)

    def test_three_ranks_are_like_fsdp2_and_one_process(self):
        self.check(3)

    def test_four_ranks_are_like_fsdp2_and_one_process(self):
        self.check(4)

    def test_every_kind_of_layer_and_option_is_among_the_cases(self):
        nodes = [n for case in self.cases for _, n in cases.walk(case["model"])]
        self.assertEqual({n["type"] for n in nodes},
                         {*cases.PARAMETERS, "block"})
        self.assertEqual({n["style"] for n in nodes if "style" in n},
                         set(cases.STYLES))
        for key in "ties", "frozen", "ignored", "freezing":
            self.assertTrue(any(case[key] for case in self.cases), key)
        for key in "meta", "poison", "evaluate", "input_gradients":
            self.assertEqual({case[key] for case in self.cases}, {True, False})
        self.assertTrue(any(len(unit["modules"]) > 1 for case in self.cases
                            for unit in case["units"]))

    def test_only_what_double_precision_clears_is_taken_for_rounding(self):
        case = next(case for case in self.cases if not compare.has_bf16(case)
                    and compare.may_be_rounding(
                        case, self.outcomes[case["seed"]]))

        def findings_if_off_by(factor):
            outcomes = copy.deepcopy(self.outcomes[case["seed"]])
            outcomes["tessera"]["losses"][0] *= factor
            self.assertTrue(differential.findings(case, outcomes))
            self.assertFalse(compare.agrees(outcomes, compare.DOUBLE))
            return differential.settle(PROGRAM, case, outcomes, DEADLINE_S)

        self.assertFalse(findings_if_off_by(1.001))
        self.assertTrue(findings_if_off_by(1.1))  # not even asked for

    def test_a_failure_is_never_taken_for_rounding(self):
        case = next(case for case in self.cases if compare.may_be_rounding(
            case, self.outcomes[case["seed"]]))
        for who in "tessera", "fsdp2", "plain":
            outcomes = dict(self.outcomes[case["seed"]])
            outcomes[who] = {"error": "cannot"}
            self.assertFalse(compare.may_be_rounding(case, outcomes), who)

    def test_fsdp2_is_not_asked_for_what_it_was_seen_to_refuse(self):
        for seed, reason in ((22832, "clips gradients of ignored"),
                             (24509, "inside a recomputed block"),
                             (23599, "inside a recomputed block")):
            self.assertIn(reason, cases.make_case(seed)["without_fsdp2"])


if __name__ == "__main__":
    PROGRAM = sys.argv[1]
    unittest.main(argv=sys.argv[:1])
