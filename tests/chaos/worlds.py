"""Runs one world of ranks with one fault in it, and says what every rank has said."""

import dataclasses
import json
import os
import selectors
import signal
import subprocess
import time

import memory
from places import RankStore, Scratch, Siege, StoreProcess, Visit, available_memory, resident, shared_names, within

JOIN_SECONDS = 20  # what a world may take to start, on a busy machine
LAST_WORDS = 20  # how long ranks may take to end once they have heard the failure


@dataclasses.dataclass
class Plan:
    """One injection. Everything in it follows from the seed."""
    case: str
    world: int
    transport: str
    point: int
    fault: str
    victims: list
    step: int  # -1: while joining; `steps`: while leaving
    delay_us: int
    steps: int
    seed: int
    first: int  # so many ranks on the first of two hosts
    stall_ms: int = 5000
    timeout_ms: int = 60000
    bound: float = 1.0  # seconds from the injection to the last survivor's error
    leave: float = 10  # seconds from then to the end of the last process
    options: tuple = ()  # for the ranks
    variables: dict = dataclasses.field(default_factory=dict)
    memory: int = 0  # of the victims' cgroup; 0 for none. Where there are no cgroups the driver does as one would.
    cut: str = ""  # by the driver: "both", "first", "second", "silent"
    resume_after: float = -1  # SIGCONT so long after the stop; -1: when the others have gone on
    storm: bool = False  # the driver kills all
    store_in_rank_0: bool = False  # else it is a process of its own
    suspend: float = 0  # seconds for which the driver stops everything, the store too
    siege: float = 0  # seconds for which strangers attack every listener, by turns
    impostors: str = ""  # who come to every listener: what is wrong with them
    flip: str = ""  # by the driver, in the victim's memory: a bit of the "header", the "payload" or the "words"
    bit: int = 0
    timed: bool = True  # whether what depends on the speed of the machine is judged

    def survivors(self):
        return [rank for rank in range(self.world) if rank not in self.victims]

    def host_of(self, rank):
        return 0 if self.transport == "shm" or rank < self.first else 1


class RankProcess:
    def __init__(self, plan, rank, program, place, store, scratch, cgroup):
        arguments = {"seed": plan.seed, "steps": plan.steps, "fault": plan.fault,
                     "victims": ",".join(map(str, plan.victims)), "step": plan.step, "delay-us": plan.delay_us,
                     "stall-ms": int(plan.stall_ms), "timeout-ms": int(plan.timeout_ms)}
        words = [word for name, value in arguments.items() for word in (f"--{name}", str(value))]
        environment = scratch.environment(
            RANK=str(rank), WORLD_SIZE=str(plan.world), LOCKSTEP_JOB_ID="chaos", LOCKSTEP_SECRET_FILE=store.secret,
            LOCKSTEP_TIMEOUT=str(within(JOIN_SECONDS))) | store.variables | plan.variables
        self.process = subprocess.Popen(
            [*place.prefix(plan.host_of(rank)), program, *words, *plan.options], env=environment,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            preexec_fn=cgroup.enter if cgroup and rank in plan.victims else None)
        self.began = time.monotonic()  # at the latest
        self.rank, self.events, self.rest, self.errors = rank, [], b"", b""

    def take(self, stream, chunk):
        if stream == "err":
            self.errors += chunk
            return
        *lines, self.rest = (self.rest + chunk).split(b"\n")
        self.events += [json.loads(line) for line in lines]

    def event(self, name):
        return next((event for event in self.events if event["event"] == name), None)

    def has_ended(self):
        return self.process.poll() is not None

    def clean_up(self):
        if not self.has_ended():
            self.process.kill()
            self.process.send_signal(signal.SIGCONT)
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            try:
                stream.close()
            except BrokenPipeError:
                pass


@dataclasses.dataclass
class Outcome:
    events: list  # by rank
    errors: list  # what each wrote to stderr
    statuses: list  # exit statuses, as subprocess gives them
    began: list  # when each process had been started, on the monotonic clock
    injected: float = 0  # seconds on the monotonic clock; 0 if it never happened
    hang: bool = False
    leaks: list = dataclasses.field(default_factory=list)
    started: float = 0  # seconds from the start until all had joined
    siege: object = None  # where there was one
    visit: object = None
    stray: dict = None  # the error of the rank that does not belong here
    took: float = 0  # seconds from the injection until all had ended

    def event(self, rank, name):
        return next((event for event in self.events[rank] if event["event"] == name), None)

    def failure(self, rank):
        return self.event(rank, "failed") or self.event(rank, "wrong")


class Conductor:
    """What the driver itself does while a world runs."""

    def __init__(self, plan, ranks, place, store, start):
        """`start` starts one rank more, of another plan."""
        self.plan, self.ranks, self.place, self.store, self.start = plan, ranks, place, store, start
        self.injected = 0.0
        self.joined_at = 0.0
        self.stopped_at = 0.0
        self.done = set()
        self.siege = self.visit = self.stray = None

    def all_have(self, name, who):
        return all(self.ranks[rank].event(name) or self.ranks[rank].has_ended() for rank in who)

    def look(self):
        plan, now = self.plan, time.monotonic()
        marks = [rank.event("inject")["at"] / 1e9 for rank in self.ranks if rank.event("inject")]
        if marks:
            self.injected = max(marks)
        if not self.joined_at and all(rank.event("joined") for rank in self.ranks):
            self.joined_at = now
        due = self.joined_at and now >= self.joined_at + plan.delay_us / 1e6
        if plan.cut and due and self.once("cut"):
            self.cut()
        if plan.storm and (now >= self.began + plan.delay_us / 1e6) and self.once("storm"):
            self.injected = time.monotonic()
            for rank in self.ranks:
                rank.process.kill()
        if plan.suspend and due:
            self.suspend(now)
        if plan.fault in ("stop", "stop_barrier") and marks:
            if plan.resume_after >= 0:
                resume = now >= self.injected + plan.resume_after
            else:
                resume = self.all_have("half", plan.survivors()) or self.all_have("end", plan.survivors())
            if resume and self.once("resume"):
                for victim in plan.victims:
                    self.ranks[victim].process.send_signal(signal.SIGCONT)
        if plan.siege and due:
            self.besiege(now)
        if plan.impostors and due:
            self.receive_impostors()
        if plan.flip and self.ranks[plan.victims[0]].event("ready") and "flip" not in self.done and self.flip():
            self.done.add("flip")
            for survivor in plan.survivors():
                self.ranks[survivor].process.stdin.close()
        if plan.fault == "hoard" and marks and not self.kernel_kills and "kill" not in self.done:
            self.kill_who_hoards()
        if plan.fault == "sleep" and self.all_have("failed", plan.survivors()) and self.once("wake"):
            for victim in plan.victims:
                self.ranks[victim].process.stdin.close()

    began = 0.0
    kernel_kills = True

    def kill_who_hoards(self):
        """As the kernel would in a cgroup."""
        for victim in self.plan.victims:
            process = self.ranks[victim].process
            if process.poll() is None and resident([process])[0] > self.plan.memory and self.once("kill"):
                process.kill()

    def suspend(self, now):
        """All stop, and all go on: a machine, and whatever else it serves."""
        processes = [self.store.process, *(rank.process for rank in self.ranks)]
        if self.once("suspend"):
            self.stopped_at = now
            for process in processes:
                process.send_signal(signal.SIGSTOP)
        elif now >= self.stopped_at + self.plan.suspend and self.once("wake up"):
            self.injected = now
            for process in processes:
                process.send_signal(signal.SIGCONT)

    def once(self, what):
        new = what not in self.done
        self.done.add(what)
        return new

    def besiege(self, now):
        if self.once("siege"):
            # What is asked is what it costs; otherwise the attackers have their share of a machine that does other things.
            self.siege = Siege(self.place, {self.plan.host_of(rank.rank) for rank in self.ranks},
                               [self.store.process, *(rank.process for rank in self.ranks)], 19 if self.plan.timed else 0)
            self.injected = now = time.monotonic()
        if now < self.injected + self.plan.siege or not self.siege.has_attacked():
            self.siege.look()
        elif self.once("relief"):
            self.siege.end()
            self.ranks[0].process.stdin.close()

    def receive_impostors(self):
        """And, where a rank can be one of another job, run or secret, that rank."""
        if self.once("visit"):
            self.injected = time.monotonic()
            self.visit = Visit(self.place, {self.plan.host_of(rank.rank) for rank in self.ranks}, self.plan.impostors,
                               self.store, [self.store.process, *(rank.process for rank in self.ranks)])
            variables = {"job": {"LOCKSTEP_JOB_ID": "another"}, "epoch": {"LOCKSTEP_EPOCH": "7"},
                         "secret": {"LOCKSTEP_SECRET_FILE": self.store.other_secret}}.get(self.plan.impostors)
            if variables:
                self.stray = self.start(dataclasses.replace(self.plan, fault="none", variables=variables), 0)
        elif ("farewell" not in self.done and (not self.stray or self.stray.has_ended()) and self.visit.is_over()):
            self.done.add("farewell")
            if self.stray:
                self.stray.take("out", self.stray.process.stdout.read())
            self.ranks[0].process.stdin.close()

    def flip(self):
        """False as long as the victim has not posted."""
        victim = self.ranks[self.plan.victims[0]]
        flipped = memory.flip(victim.process.pid, victim.rank, self.plan.flip, self.plan.bit)
        if flipped:
            self.injected = time.monotonic()
        return flipped

    def cut(self):
        self.injected = time.monotonic()
        if self.plan.cut == "both":
            self.place.pair.cut()
        for host, name in enumerate(("first", "second")):
            if self.plan.cut in (name, "silent"):
                self.place.pair.cut_one_way(host)


def listen(ranks, conductor, limit):
    """Until every rank has ended, or for `limit(conductor)` seconds on the monotonic clock."""
    with selectors.DefaultSelector() as selector:
        for rank in ranks:
            for name in ("out", "err"):
                pipe = rank.process.stdout if name == "out" else rank.process.stderr
                os.set_blocking(pipe.fileno(), False)
                selector.register(pipe, selectors.EVENT_READ, (rank, name))
        while selector.get_map():
            conductor.look()
            if time.monotonic() > limit():
                return False
            for key, _ in selector.select(0.005):
                rank, name = key.data
                chunk = os.read(key.fd, 65536)
                if chunk:
                    rank.take(name, chunk)
                else:
                    selector.unregister(key.fileobj)
    return True


def run(plan, program, place, cgroup=None):
    """Runs the plan and cleans up; nothing of it is left, or the outcome says what was."""
    names, scratch = shared_names(), Scratch()
    began = time.monotonic()
    if plan.store_in_rank_0:
        store = RankStore(place, plan.transport, scratch.folder.name)
    else:
        store = StoreProcess(place, plan.transport, scratch.folder.name, scratch.environment())
    if plan.fault == "too_much" and not cgroup:
        too_much = available_memory() + (1 << 30)
        plan = dataclasses.replace(plan, options=("--too-much", str(too_much), "--heap-capacity", str(2 * too_much)))

    def start(of, rank):
        return RankProcess(of, rank, program, place, store, scratch, cgroup)

    ranks, conductor = [], None
    try:
        for rank in range(plan.world):
            ranks.append(start(plan, rank))
        conductor = Conductor(plan, ranks, place, store, start)
        conductor.began, conductor.kernel_kills = time.monotonic(), cgroup is not None

        def limit():
            base = max(conductor.injected + plan.siege, began + within(JOIN_SECONDS))
            return base + 3 * within(plan.bound) + within(LAST_WORDS)

        in_time = listen(ranks, conductor, limit)
        took = time.monotonic() - (conductor.injected or conductor.joined_at or began)
        outcome = Outcome([rank.events for rank in ranks], [rank.errors.decode(errors="replace") for rank in ranks], [],
                          [rank.began for rank in ranks], conductor.injected, not in_time, took=took)
        outcome.siege, outcome.visit = conductor.siege, conductor.visit
        outcome.stray = conductor.stray and conductor.stray.event("failed")
        if conductor.joined_at:
            outcome.started = conductor.joined_at - began
    finally:
        for rank in ranks:
            rank.clean_up()
        for guest in (conductor.visit, conductor.stray) if conductor else ():
            if guest:
                guest.clean_up()
        store.end()
        if plan.cut:
            place.pair.mend()
    outcome.statuses = [rank.process.returncode for rank in ranks]
    outcome.leaks = scratch.leaks(place, names)
    return outcome
