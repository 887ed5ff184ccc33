"""In which kind of world a seed plays: how much is asked of it, and what goes wrong how often.

One world with a little of everything is too kind: what a rule is there for needs its own circumstances, many times over. So every
seed has a profile, by its number; the seed decides everything else.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

MINUTE_S = 60
HOUR_S = 60 * MINUTE_S
RATE_KEYS = ("api.one", "api.two")


@dataclass(frozen=True)
class Load:
    """What clients ask for, and how long tasks take.

    Attributes:
        tasks: records that clients send in all …
        bulk: … so many at a time.
        episodes: parts of the play, between which hours may pass.
        seconds: length of an episode …
        busy: … and the share of it in which clients ask for anything.
        lanes: how many lanes each partition has.
        dues: when tasks are due, in seconds from their enqueueing; one is drawn.
        far: chance that one is due in hours instead.
        late: chance that the record of a task comes up to an hour after its time.
        cancel: chance that a client cancels a key …
        twice: … and that it does so again at once.
        resend: chance that a client sends a key again that it has sent before.
        again: chance that such a key is one that was cancelled or has ended.
        long: chance that a task takes long …
        longest_ms: … up to this.
        fails: chance that an attempt fails.
        big: chance that a result has 60 kB.
        children: how many tasks a dispatcher runs at once …
        ahead: … and how many more it hands over.
        workers: how many workers lease tasks of half of the lanes.
        asks: share of the tasks that ask for a follow-up.
        expires: chance that a task expires, some seconds after its time.
        unique: chance that a name is to be unique; then lanes have a few names only.
        limited: chance that a task bears the key of a rate limit as a tag, and that what yields has run into one …
        limit_ms: … and how long that is to wait; one is drawn.
        queues: of the lanes, by name; one is drawn; empty: of all that the world has.
    """

    tasks: int = 40
    bulk: int = 1
    episodes: int = 3
    seconds: int = 15
    busy: float = 0.8
    lanes: int = 4
    dues: tuple[float, ...] = (-5, 0, 0, 0, 1, 3, 10, 30, 45)
    far: float = 0.1
    late: float = 0.02
    cancel: float = 0.12
    twice: float = 0.3
    resend: float = 0.12
    again: float = 0.3
    long: float = 0.15
    longest_ms: float = 9_000
    fails: float = 0.2
    big: float = 0.2
    children: int = 4
    ahead: int = 2
    workers: int = 0
    asks: float = 0
    expires: float = 0
    unique: float = 0
    limited: float = 0
    limit_ms: tuple[int, ...] = (200, 3_000, 8_000)
    queues: tuple[str, ...] = ()


@dataclass(frozen=True)
class Trouble:
    """What goes wrong, as chances per opportunity: of a process each second, of a send, of a read.

    Attributes:
        crash: a process ends at once.
        restart_ms: how soon another starts in its place.
        static: it takes its place in the group, too, as static members do.
        pause: a process stands still …
        pause_ms: … so long.
        clock_step: a clock is set.
        join: a process more starts.
        leave: a process stops cleanly.
        session_s: how long the group waits for a member that is not heard of.
        send: a send is reported as failed; it may land all the same.
        slow: a read of tables takes seconds …
        slow_ms: … up to this.
        lag: ingest stands still …
        lag_ms: … so long.
        storage: a read fails.
        hand_back: an executor hands work back that it has not begun.
        jump: hours pass between two episodes …
        jumps_s: … so many; one is drawn.
        ingest_ms: how soon ingest does its next thing.
        records: most records that a tail reads at a time; 0: any number.
        tail: chance that a tail reads seconds late.
        memory_kb: what a dispatcher may hold; one is drawn.
        remember_s: for how long ended keys are remembered at least.
        look_ahead_s: how far ahead tasks are loaded.
        redefine: the definition of a queue is changed.
        marks: behind a record of `tasks` stands the mark of a transaction, which nobody is given to read.
    """

    crash: float = 0.02
    restart_ms: tuple[float, float] = (500, 6_000)
    static: bool = False
    pause: float = 0.02
    pause_ms: tuple[float, float] = (500, 30_000)
    clock_step: float = 0.01
    join: float = 0.02
    leave: float = 0.01
    session_s: int = 10
    send: float = 0.03
    slow: float = 0.3
    slow_ms: float = 9_000
    lag: float = 0.1
    lag_ms: tuple[float, float] = (3_000, 25_000)
    storage: float = 0.01
    hand_back: float = 0.02
    jump: float = 0.3
    jumps_s: tuple[int, ...] = (20 * MINUTE_S, HOUR_S, 5 * HOUR_S, 40 * HOUR_S)
    ingest_ms: tuple[float, float] = (100, 1_000)
    records: int = 0
    tail: float = 0
    memory_kb: tuple[int, ...] = (1_000_000,)
    remember_s: int = 60
    look_ahead_s: int = 20
    redefine: float = 0
    marks: float = 0


NO_TROUBLE = Trouble(
    crash=0, pause=0, clock_step=0, join=0, leave=0, send=0, lag=0, storage=0, jump=0, slow=0.05, hand_back=0
)


@dataclass(frozen=True)
class Profile:
    """A kind of world.

    Attributes:
        name: what a failing seed is told with.
        load: what is asked of it.
        trouble: what goes wrong.
        broken: switches of rules that are broken on purpose.
    """

    name: str
    load: Load = field(default_factory=Load)
    trouble: Trouble = field(default_factory=Trouble)
    broken: frozenset[str] = frozenset()

    @property
    def faultless(self) -> bool:
        """Returns True if nothing is ever lost or stopped, so that more can be promised."""
        return not (self.trouble.crash or self.trouble.pause or self.trouble.clock_step or self.trouble.send)

    def breaking(self, *switches: str) -> Profile:
        """The same world with rules broken on purpose."""
        return replace(self, broken=frozenset(switches))


SOON = (-5, 0, 0, 0, 0, 1, 1, 2, 3, 5)
WITHIN_LOOK_AHEAD = (0, 1, 5, 10, 12, 15, 20, 25, 30, 40)
_HARSH = Trouble(crash=0.05, pause=0.1, send=0.1, slow=0.5, jump=0.5, join=0.04)
_OFTEN_BACK = Trouble(static=True, restart_ms=(100, 1_500), pause=0.01, join=0.05, jump=0.1, slow=0.1)
_QUIET = Trouble(
    crash=0.004,
    pause=0,
    clock_step=0,
    leave=0.01,
    join=0.005,
    send=0.01,
    jump=0,
    slow=0.4,
    slow_ms=12_000,
    lag=0.02,
    remember_s=2,
    look_ahead_s=6,
)
_SHORT = (16, 30)

PROFILES = (
    Profile("usual"),
    Profile("harsh", trouble=_HARSH),
    Profile("short memory", Load(tasks=120), replace(_HARSH, memory_kb=_SHORT)),
    # members that are frozen for longer than the group waits, while much becomes due, and children that go on
    Profile(
        "frozen",
        Load(
            tasks=60,
            lanes=5,
            dues=(0, 0, 0, 1, 2, 5, 8, 12),
            far=0,
            long=0.4,
            longest_ms=15_000,
            cancel=0.05,
            children=2,
            ahead=6,
        ),
        Trouble(crash=0, pause=0.06, pause_ms=(5_000, 20_000), session_s=6, jump=0.1, slow=0.1, lag=0.03, join=0.03),
    ),
    # much work that waits in executors, with drivers that die and come back at once
    Profile(
        "killed",
        Load(tasks=90, lanes=6, dues=SOON, far=0, long=0.5, longest_ms=6_000, cancel=0.05, resend=0.05),
        replace(_OFTEN_BACK, crash=0.08, leave=0.05),
    ),
    # nothing fails, but members come and go
    Profile(
        "moving",
        Load(tasks=80, dues=SOON, far=0.02, long=0.4),
        replace(NO_TROUBLE, join=0.1, leave=0.1, slow=0.2, lag=0.05, hand_back=0.02, marks=0.1),
    ),
    # nothing fails, and clients change their minds
    Profile(
        "undecided",
        Load(tasks=90, dues=WITHIN_LOOK_AHEAD, far=0.05, cancel=0.35, twice=0.7, resend=0.2, again=0.6),
        replace(NO_TROUBLE, lag=0.05),
    ),
    # nothing fails, and much comes at once that is due soon after the last scan
    Profile(
        "bulk",
        Load(tasks=160, bulk=12, seconds=20, dues=(3, 12, 13, 15, 17, 19), far=0, late=0, cancel=0.02, long=0.02),
        replace(NO_TROUBLE, lag=0.02),
    ),
    # keys that ended come again, after what is remembered of them has been let go of
    Profile(
        "forgetful",
        Load(tasks=100, seconds=25, dues=WITHIN_LOOK_AHEAD, far=0.02, cancel=0.2, resend=0.4, again=0.8),
        _QUIET,
    ),
    # the same while lanes are let go of and read again, slowly
    Profile(
        "forgetful, short memory",
        Load(tasks=200, seconds=20, lanes=3, dues=SOON, far=0.02, cancel=0.4, long=0.3, longest_ms=3_000, big=0),
        replace(_QUIET, memory_kb=(8, 12), slow=0.7),
    ),
    # tables and tails that are far behind, while partitions move
    Profile(
        "behind",
        Load(tasks=120, dues=WITHIN_LOOK_AHEAD + SOON, far=0.02, cancel=0.25, resend=0.2),
        replace(_OFTEN_BACK, crash=0.03, leave=0.05, lag=0.5, lag_ms=(5_000, 20_000), records=2, tail=0.1),
    ),
    # sends whose fate is unknown, and facts that are read back late
    Profile(
        "unsure",
        Load(tasks=80, dues=SOON, far=0, fails=0.5, long=0.05),
        Trouble(crash=0.01, pause=0.02, send=0.15, tail=0.15, slow=0.1, jump=0.1, lag=0.05),
    ),
    # memory that holds next to nothing
    Profile(
        "tiny memory",
        Load(tasks=180, lanes=6, dues=WITHIN_LOOK_AHEAD + SOON, far=0.1, cancel=0.3, resend=0.1, big=0.05),
        replace(_HARSH, crash=0.03, pause=0.02, memory_kb=(6, 10), lag=0.3, slow=0.2),
    ),
)


_WORKED = Load(tasks=80, dues=SOON, far=0.02, workers=4, long=0.3, longest_ms=7_000)
LEASE_PROFILES = (
    Profile("leased", _WORKED),
    Profile("leased, harsh", _WORKED, _HARSH),
    Profile("leased, killed", _WORKED, replace(_OFTEN_BACK, crash=0.05, leave=0.05)),
    Profile("leased, moving", _WORKED, replace(NO_TROUBLE, join=0.1, leave=0.1, slow=0.2, lag=0.05)),
    Profile(
        "leased, unsure", _WORKED, Trouble(crash=0.01, pause=0.02, send=0.15, tail=0.15, slow=0.1, jump=0.1, lag=0.05)
    ),
    Profile("leased, short memory", replace(_WORKED, tasks=160), replace(_HARSH, memory_kb=(60, 90))),
)
"""Worlds with workers; they are played on their own, so that the worlds above stay what they are."""
_ASKING = Load(tasks=80, dues=SOON, far=0, cancel=0.05, resend=0.05, asks=0.6)
ASKING_PROFILES = (
    Profile("asking", _ASKING),
    Profile("asking, harsh", _ASKING, replace(_HARSH, jump=0.1)),
    Profile("asking, killed", replace(_ASKING, long=0.4), replace(_OFTEN_BACK, crash=0.08, leave=0.05)),
    Profile(
        "asking, unsure", _ASKING, Trouble(crash=0.02, pause=0.02, send=0.2, tail=0.15, slow=0.1, jump=0.1, lag=0.05)
    ),
    Profile(
        "asking, behind",
        _ASKING,
        replace(_OFTEN_BACK, crash=0.05, lag=0.5, lag_ms=(5_000, 20_000), records=2, tail=0.1),
    ),
    Profile("asking, short memory", replace(_ASKING, tasks=120), replace(_HARSH, memory_kb=_SHORT, jump=0.1)),
    Profile("asking, moving", _ASKING, replace(NO_TROUBLE, join=0.1, leave=0.1, slow=0.2, lag=0.05)),
)
"""Worlds in which handlers enqueue tasks; they are played on their own, too."""
_EXPIRING = Load(tasks=90, dues=SOON, far=0.02, long=0.4, longest_ms=7_000, children=1, expires=0.6)
_STEADY_CLOCKS = replace(_HARSH, clock_step=0)
EXPIRING_PROFILES = (
    Profile("expiring", _EXPIRING, Trouble(clock_step=0)),
    Profile("expiring, harsh", _EXPIRING, _STEADY_CLOCKS),
    Profile("expiring, killed", _EXPIRING, replace(_OFTEN_BACK, crash=0.08, leave=0.05, clock_step=0)),
    Profile("expiring, leased", replace(_EXPIRING, workers=2), replace(_STEADY_CLOCKS, crash=0.03)),
    Profile("expiring, redefined", _EXPIRING, Trouble(clock_step=0, redefine=0.7)),
    Profile("expiring, short memory", replace(_EXPIRING, tasks=120), replace(_STEADY_CLOCKS, memory_kb=_SHORT)),
    Profile(
        "expiring, behind", _EXPIRING, replace(_OFTEN_BACK, crash=0.03, lag=0.5, records=2, tail=0.1, clock_step=0)
    ),
)
"""Worlds in which tasks expire; clocks are right in them, so that it is known what is too late."""
_LIMITED = Load(tasks=100, dues=SOON, far=0.02, cancel=0.1, limited=0.6, lanes=5)
LIMITED_PROFILES = (
    Profile("limited", _LIMITED, Trouble(clock_step=0)),
    Profile("limited, harsh", _LIMITED, _STEADY_CLOCKS),
    Profile("limited, leased", replace(_LIMITED, workers=3), replace(_STEADY_CLOCKS, crash=0.03)),
    Profile("limited, moving", _LIMITED, replace(NO_TROUBLE, join=0.1, leave=0.1, slow=0.2, lag=0.05)),
    Profile("limited, expiring", replace(_LIMITED, expires=0.4, children=1), Trouble(clock_step=0)),
    Profile("limited, redefined", _LIMITED, Trouble(clock_step=0, redefine=0.7)),
    Profile("limited, short memory", replace(_LIMITED, tasks=160), replace(_STEADY_CLOCKS, memory_kb=_SHORT)),
    Profile(
        "limited, long, short memory",
        replace(_LIMITED, tasks=300, lanes=60, limited=0.95, limit_ms=(75_000, 100_000)),
        Trouble(clock_step=0, memory_kb=_SHORT),
    ),
)
"""Worlds in which tasks run into rate limits that others share; clocks are right in them, too."""
_AHEAD = Load(tasks=150, bulk=3, seconds=20, lanes=2, dues=WITHIN_LOOK_AHEAD + SOON, far=0.02, cancel=0.05, resend=0.05)
_OVERTAKEN = replace(NO_TROUBLE, records=1, tail=0.8, ingest_ms=(20, 80), look_ahead_s=8, slow=0.1)
_GROUPED = Load(
    tasks=80,
    episodes=1,
    seconds=60,
    busy=0.1,
    lanes=16,
    dues=(0,),
    far=0,
    late=0,
    long=0.9,
    longest_ms=3_000,
    children=3,
    ahead=0,
    queues=("grouped", "default"),
)
_BY_TURNS = replace(NO_TROUBLE, leave=0.3, restart_ms=(2_000, 6_000), slow=0.1)
_LONG_AGO = Load(
    tasks=120, episodes=6, seconds=12, lanes=2, dues=SOON, far=0, cancel=0.2, resend=0.4, again=0.9, long=0.02, big=0
)
_STANDING = replace(NO_TROUBLE, jump=0.9, jumps_s=(5 * HOUR_S, 40 * HOUR_S), remember_s=2, ingest_ms=(20, 200))
AIMED_PROFILES = (
    # tables that are ahead of tails: a scan shows what the log has not shown yet
    Profile("tables ahead", _AHEAD, _OVERTAKEN),
    Profile("tables ahead, moving", _AHEAD, replace(_OVERTAKEN, join=0.05, leave=0.05)),
    Profile("tables ahead, killed", _AHEAD, replace(_OVERTAKEN, crash=0.04, static=True, restart_ms=(100, 1_500))),
    Profile("tables ahead, short memory", replace(_AHEAD, lanes=5), replace(_OVERTAKEN, memory_kb=(8, 16))),
    Profile("tables ahead, leased", replace(_AHEAD, workers=3), replace(_OVERTAKEN, crash=0.02)),
    # groups of one slot, whose partitions move and whose lanes are let go of
    Profile("one slot, moving", _GROUPED, _BY_TURNS),
    Profile("one slot, frozen", _GROUPED, Trouble(crash=0, pause=0.06, pause_ms=(5_000, 20_000), session_s=6, jump=0)),
    Profile("one slot, short memory", replace(_GROUPED, tasks=140), replace(_HARSH, memory_kb=_SHORT, jump=0.1)),
    Profile("one slot, unsure", _GROUPED, replace(_BY_TURNS, send=0.1, hand_back=0.1)),
    # all stands still for days; then come keys of hours that were closed meanwhile
    Profile("long ago", _LONG_AGO, _STANDING),
    Profile("long ago, killed", _LONG_AGO, replace(_STANDING, crash=0.05, send=0.05)),
    Profile("long ago, behind", _LONG_AGO, replace(_STANDING, records=2, tail=0.3, lag=0.3, slow=0.4)),
)
"""Worlds aimed at what a hundred thousand seeds of the others showed ten times."""
_RACING = Load(
    tasks=120,
    bulk=4,
    lanes=3,
    dues=(0, 0, 1, 2, 5, 12, 25, 40),
    far=0.25,
    late=0.01,
    cancel=0.15,
    resend=0.15,
    unique=0.7,
)
UNIQUE_PROFILES = (
    Profile("unique", _RACING),
    Profile("unique, harsh", _RACING, _HARSH),
    Profile("unique, killed", replace(_RACING, long=0.4), replace(_OFTEN_BACK, crash=0.08, leave=0.05)),
    Profile("unique, frozen", replace(_RACING, long=0.4), Trouble(crash=0, pause=0.06, session_s=6, jump=0.1)),
    Profile("unique, moving", _RACING, replace(NO_TROUBLE, join=0.1, leave=0.1, slow=0.3, lag=0.05)),
    Profile("unique, quiet", replace(_RACING, resend=0.25, again=0.6), replace(NO_TROUBLE, slow=0.5, lag=0.1)),
    Profile("unique, unsure", _RACING, Trouble(crash=0.01, pause=0.02, send=0.15, tail=0.15, slow=0.3, jump=0.1)),
    Profile(
        "unique, behind",
        _RACING,
        replace(_OFTEN_BACK, crash=0.04, leave=0.05, lag=0.5, lag_ms=(5_000, 20_000), records=2, tail=0.1),
    ),
    Profile("unique, forgetful", replace(_RACING, seconds=25, resend=0.3, again=0.8), _QUIET),
    Profile("unique, short memory", replace(_RACING, tasks=160), replace(_HARSH, memory_kb=_SHORT, crash=0.03)),
    Profile("unique, leased", replace(_RACING, workers=3), replace(_HARSH, crash=0.03)),
    Profile("unique, expiring", replace(_RACING, expires=0.3, children=1), replace(_HARSH, clock_step=0)),
)
"""Worlds in which many send the same names at once."""
REDEFINED = tuple(
    replace(profile, name=f"{profile.name}, redefined", trouble=replace(profile.trouble, redefine=0.7))
    for profile in PROFILES
    if profile.name in ("usual", "short memory", "killed", "moving", "bulk", "tiny memory")
)
"""The same worlds while definitions of queues change. They stand apart: which seed plays in which of the others is known."""
