"""What becomes of the points of a case in the table, and of reports that are merged."""

import json
import pathlib
import tempfile
import unittest

import chaos


def row(world, bound, **rest):
    return chaos.Row("stop_server", "F4", world, "tcp", bound, injected=1, **rest)


def complaint(world):
    return {"world": world, "point": 3, "texts": ["rank 1: no error"], "again": f"chaos.py --world {world} --point 3"}


class RowsTest(unittest.TestCase):
    def test_of_several_bounds_the_table_shows_the_largest(self):
        both = row(2, 0)
        for bound in (2.0, 3.0, 2.0):
            both.allow(bound)
        self.assertEqual(both.bound_s, 3.0)
        both = row(2, 2.0)
        both.add(row(4, 3.0))
        self.assertEqual(both.bound_s, 3.0)

    def test_complaints_are_kept_and_merged_with_the_command_that_repeats_them(self):
        with tempfile.TemporaryDirectory() as folder:
            files = []
            for world in (2, 4):
                files.append(pathlib.Path(folder, f"{world}.json"))
                said = row(world, 2.0, complaints=[complaint(world)]).as_json()
                files[-1].write_text(json.dumps({"rows": [said]}))
            merged, = chaos.merged(files)
        self.assertEqual(merged.complaints, [complaint(2), complaint(4)])
        self.assertFalse(merged.is_good())


if __name__ == "__main__":
    unittest.main()
