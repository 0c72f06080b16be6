"""All cases of the fault table that need whole worlds; case.py says what one is."""

import random

from calls import MISMATCHES, Destroy, Fork, LeaveEarly, Mismatch, OppositeOrder, Say, SecondJoin, Sleep, Slow
from deaths import (DEADLY, Death, DeathWhileJoining, DeathWhileLeaving, OutOfMemory, SeveralDeaths, Stop,
                    StopAndContinue, Storm)
from limits import Limited, NoMemory, NoSharedMemory, Signals, Suspend, TooMuch, WallClock
from servers import ServerDeath, ServerStop
from strangers import Attack, Impostors
from wires import Break, Cut, Damage, Flip, Late


def all_cases(jumping_clock=""):
    cases = [Death("kill", "F1", ("kill",)), DeathWhileJoining(), DeathWhileLeaving(), SeveralDeaths(),
             Death("end", "F3", DEADLY), Stop(), StopAndContinue(), Sleep(), Slow(), Cut(), Break(), Late(), Damage(),
             Flip(), Impostors(), Attack(),
             Mismatch("mismatch", "F21", MISMATCHES), Mismatch("same_bytes", "F22", ("same_size_dtype",)),
             LeaveEarly(), Say(), NoMemory(), OutOfMemory(), NoSharedMemory(), TooMuch(), Storm(),
             Limited("no_descriptors", ("few_descriptors", "no_descriptors"), "no_descriptors"),
             Limited("no_threads", ("few_threads", "no_threads"), "no_memory"), Signals(), Fork(), SecondJoin(), Destroy(),
             OppositeOrder(), ServerDeath(), ServerStop(), Suspend()]
    clocks = [WallClock("wall_clock", jumping_clock), WallClock("drifting_clock", jumping_clock, WALL_CLOCK="drifts")]
    return cases + (clocks if jumping_clock else [])


def plan_of(case, seed, world, transport, point):
    """The same for the same arguments."""
    return case.plan(random.Random(f"{seed}/{case.name}/{world}/{transport}/{point}"), world, transport, point)
