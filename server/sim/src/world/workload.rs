//! What a client wants: sessions, and tasks that acquire, hold, write, acquire again, release, drop, withdraw, look and close.
//!
//! Invariant: every task waits for one thing at a time. What every run does is drawn from one stream and what is out of the
//! ordinary from another. Deliberately absent: rates, which the plan has; what a task makes of what it is told, which is
//! `reaction`; and what the client library would never send, which is `forger`.

use lockstep_client::core::{AcquireOptions, CallId, SessionKey};
use lockstep_wire::limit::{DATA_BYTES_MAX, WAIT_MS_MAX};
use lockstep_wire::request::Mode;
use lockstep_wire::{CellId, FencingToken, Nonce, Owner, SessionId};

use super::client::{Client, ClientSurroundings};
use super::plan::{Plan, Workload};
use super::schedule::{Event as Scheduled, MS, Moment};
use super::visit::Visit;
use crate::oracle::exclusion::Write;
use crate::random::{Concern, Stream};

/// A hold as a task has it.
#[derive(Clone, Debug)]
pub(super) struct TaskHold {
    /// An acquire in it; the hold lives at least as long as that is not given back.
    pub(super) call: CallId,
    /// The acquire that made it.
    pub(super) origin: CallId,
    pub(super) name: String,
    pub(super) owner: Owner,
    pub(super) mode: Mode,
    pub(super) token: FencingToken,
    pub(super) fence: FencingToken,
    pub(super) session: SessionId,
    pub(super) release_at: Moment,
}

#[derive(Clone, Debug)]
pub(super) enum State {
    Idle,
    Asking {
        call: CallId,
        name: String,
        owner: Owner,
        mode: Mode,
        withdraw_at: Option<Moment>,
    },
    Holding(TaskHold),
    /// It holds, and its owner asks once more.
    Again {
        hold: TaskHold,
        call: CallId,
        is_reentrant: bool,
    },
    /// It holds by one more acquire than it needs, and gives one back.
    Shedding {
        hold: TaskHold,
        call: CallId,
    },
    Releasing {
        call: CallId,
        hold: TaskHold,
    },
    Looking {
        call: CallId,
    },
    Closing {
        call: CallId,
    },
}

#[derive(Clone, Debug)]
pub(super) struct Task {
    /// Which of the client's sessions it acts for.
    pub(super) slot: usize,
    pub(super) owner: Owner,
    pub(super) state: State,
    pub(super) due: Moment,
}

#[derive(Clone, Debug)]
pub(super) struct Slot {
    pub(super) session: Option<SessionKey>,
    pub(super) opening: Option<CallId>,
    pub(super) is_in_jeopardy: bool,
    /// When a session is opened next, while there is none.
    pub(super) reopen_at: Moment,
}

/// The hands of a client: see the module.
#[derive(Debug)]
pub(super) struct Hands {
    pub(super) workload: Workload,
    pub(super) stream: Stream,
    pub(super) variety: Stream,
    pub(super) slots: Vec<Slot>,
    pub(super) tasks: Vec<Task>,
    /// The last token that any task had.
    pub(super) last_token: FencingToken,
    /// Nothing new is begun.
    is_winding_down: bool,
    /// Somebody may believe in more than before.
    pub(super) has_news: bool,
    /// It makes this visit and does nothing else.
    pub(super) visit: Option<Visit>,
}

/// Never, for tasks.
pub(super) const NEVER: Moment = Moment::MAX;

impl Hands {
    pub(super) fn new(plan: &Plan, place: usize, life: u64, now: Moment) -> Hands {
        let number = (place as u64) << 32 | life;
        let mut stream = Stream::new(plan.seed, Concern::Workload, number);
        let slot = |stream: &mut Stream| Slot {
            session: None,
            opening: None,
            is_in_jeopardy: false,
            reopen_at: now + stream.around(100 * MS),
        };
        let slots: Vec<Slot> = (0..plan.workload.sessions).map(|_| slot(&mut stream)).collect();
        let task = |number: usize, stream: &mut Stream| Task {
            slot: number % plan.workload.sessions,
            owner: Owner(number as u64 + 1),
            state: State::Idle,
            due: now + stream.around(plan.workload.think_mean),
        };
        let tasks = (0..plan.workload.tasks).map(|number| task(number, &mut stream)).collect();
        Hands {
            workload: plan.workload.clone(),
            stream,
            variety: Stream::new(plan.seed, Concern::Variety, number + 1),
            slots,
            tasks,
            last_token: FencingToken(0),
            is_winding_down: false,
            has_news: false,
            visit: None,
        }
    }

    pub(super) fn wind_down(&mut self) {
        self.is_winding_down = true;
    }

    pub(super) fn take_news(&mut self) -> bool {
        std::mem::take(&mut self.has_news)
    }

    pub(super) fn are_idle(&self) -> bool {
        self.tasks.iter().all(|task| matches!(task.state, State::Idle))
            && self.slots.iter().all(|slot| slot.opening.is_none())
    }

    pub(super) fn sessions(&self) -> impl Iterator<Item = SessionKey> {
        self.slots.iter().filter_map(|slot| slot.session)
    }

    pub(super) fn holds(&self) -> impl Iterator<Item = &TaskHold> {
        self.tasks.iter().filter_map(|task| match &task.state {
            State::Holding(hold) | State::Again { hold, .. } | State::Shedding { hold, .. } => Some(hold),
            State::Idle
            | State::Asking { .. }
            | State::Releasing { .. }
            | State::Looking { .. }
            | State::Closing { .. } => None,
        })
    }

    /// What the tasks wait for, for people.
    pub(super) fn occupation(&self) -> String {
        let busy = self.tasks.iter().filter(|task| !matches!(task.state, State::Idle));
        busy.map(|task| format!("{:?}", task.state)).collect::<Vec<_>>().join("; ")
    }

    pub(super) fn due(&self) -> Option<Moment> {
        let tasks = self.tasks.iter().map(|task| match &task.state {
            State::Asking { withdraw_at, .. } => withdraw_at.unwrap_or(NEVER),
            _ => task.due,
        });
        let slots = self.slots.iter().filter(|slot| slot.session.is_none()).map(|slot| slot.reopen_at);
        tasks.chain(slots).min().filter(|due| *due < NEVER)
    }

    pub(super) fn task_of(&self, call: CallId) -> Option<usize> {
        self.tasks.iter().position(|task| match &task.state {
            State::Asking { call: own, .. }
            | State::Releasing { call: own, .. }
            | State::Looking { call: own }
            | State::Closing { call: own } => *own == call,
            State::Again { hold, call: own, .. } | State::Shedding { hold, call: own } => {
                *own == call || hold.call == call
            }
            State::Holding(hold) => hold.call == call,
            State::Idle => false,
        })
    }

    pub(super) fn rest(&mut self, at: usize, now: Moment) {
        let pause = self.stream.around(self.workload.think_mean);
        let due = if self.is_winding_down { NEVER } else { now + pause };
        self.tasks[at] = Task { state: State::Idle, due, ..self.tasks[at].clone() };
    }
}

impl Client {
    pub(super) fn resource(&self, name: &str) -> (CellId, String) {
        (self.cell, name.to_owned())
    }

    /// Does what is due by the clock.
    pub(super) fn act(&mut self, around: &mut ClientSurroundings<'_>) {
        let now = around.fabric.now();
        self.open_due(now);
        for at in 0..self.hands.tasks.len() {
            let task = self.hands.tasks[at].clone();
            match task.state {
                State::Idle if task.due <= now => self.begin(at, now),
                State::Asking { call, withdraw_at: Some(due), .. } if due <= now => {
                    let local = self.local(now);
                    self.core.cancel(call, local);
                    self.hands.rest(at, now);
                }
                State::Holding(hold) if task.due <= now => self.hold_on(at, &hold, around),
                State::Idle
                | State::Asking { .. }
                | State::Holding(_)
                | State::Again { .. }
                | State::Shedding { .. }
                | State::Releasing { .. }
                | State::Looking { .. }
                | State::Closing { .. } => {}
            }
        }
    }

    fn open_due(&mut self, now: Moment) {
        let local = self.local(now);
        let (low, high) = self.hands.workload.ttl_ms;
        let is_winding_down = self.hands.is_winding_down;
        for slot in &mut self.hands.slots {
            if slot.session.is_some() || slot.reopen_at > now {
                continue;
            }
            if is_winding_down {
                slot.reopen_at = NEVER;
                continue;
            }
            let ttl_ms = self.hands.stream.between(u64::from(low), u64::from(high));
            let ttl_ms = u32::try_from(ttl_ms).expect("a TTL is short");
            let (key, call) = self.core.open_session(ttl_ms, Nonce(self.hands.stream.bytes_16()), local);
            (slot.session, slot.opening) = (Some(key), Some(call));
        }
    }

    /// An idle task begins something.
    fn begin(&mut self, at: usize, now: Moment) {
        let slot = self.hands.slots[self.hands.tasks[at].slot].clone();
        let is_open = slot.opening.is_none();
        let (Some(key), true, false) = (slot.session, is_open, self.hands.is_winding_down) else {
            return self.hands.rest(at, now);
        };
        if self.hands.visit.is_some() {
            return self.go_on_visiting(at, key, now);
        }
        let local = self.local(now);
        let workload = self.hands.workload.clone();
        let is_odd = self.hands.variety.percent(workload.odd_percent);
        let stream = &mut self.hands.stream;
        let name = workload.name(stream.place(workload.names));
        let draw = stream.below(100);
        let state = if is_odd {
            self.begin_oddly(at, key, &name, now)
        } else if draw < workload.read_percent {
            State::Looking { call: self.core.get_lock(&name, local) }
        } else if draw < workload.read_percent + workload.close_percent {
            State::Closing { call: self.core.close_session(key, local) }
        } else {
            let mode = if stream.percent(workload.shared_percent) { Mode::Shared } else { Mode::Exclusive };
            let wait_ms = stream.one_of(&[0, 50, 500, 5_000, 20_000]);
            let withdraws = stream.percent(workload.cancel_percent);
            let withdraw_at = withdraws.then(|| now + stream.around(50 * MS));
            let options = AcquireOptions {
                name: name.clone(),
                owner: self.hands.tasks[at].owner,
                mode,
                is_reentrant: false,
                wait_ms,
                data: Vec::new(),
            };
            let owner = options.owner;
            State::Asking { call: self.core.acquire(key, options, local), name, owner, mode, withdraw_at }
        };
        self.hands.tasks[at].state = state;
        self.hands.tasks[at].due = NEVER;
    }

    /// Looks of every kind, an acquire by an owner that may be busy, one with all that fits, and what cannot be asked.
    fn begin_oddly(&mut self, at: usize, key: SessionKey, name: &str, now: Moment) -> State {
        let local = self.local(now);
        let other = (at + 1) % self.hands.tasks.len();
        let held = self.hands.holds().next().map(|hold| (hold.name.clone(), hold.token, hold.session));
        let last = self.hands.last_token;
        let mut options = AcquireOptions {
            name: name.to_owned(),
            owner: self.hands.tasks[at].owner,
            mode: Mode::Exclusive,
            is_reentrant: false,
            wait_ms: WAIT_MS_MAX,
            data: vec![b'd'; DATA_BYTES_MAX],
        };
        let variety = &mut self.hands.variety;
        let call = match variety.below(10) {
            0 | 1 => match held {
                Some((name, token, session)) => {
                    let of = if variety.percent(50) { session } else { SessionId(0) };
                    self.core.check_token(&name, token, of, local)
                }
                None => self.core.check_token(name, last, SessionId(0), local),
            },
            2 => self.core.check_token(name, last, SessionId(0), local),
            3 => self.core.check_token("/ls/sim/nobody", last, SessionId(0), local),
            4 => self.core.get_session(key, local),
            5 => self.core.status(local),
            6 => self.core.routes(local),
            7 => {
                match variety.below(3) {
                    0 => options.name = format!("/ls/sim/{}", "n".repeat(513)),
                    1 => options.wait_ms += 1,
                    _ => options.data.push(b'd'),
                }
                self.core.acquire(key, options, local)
            }
            draw => {
                let withdraw_at = variety.percent(50).then(|| now + variety.around(500 * MS));
                if draw == 8 {
                    options.owner = self.hands.tasks[other].owner;
                    options.wait_ms = 1_000;
                }
                let (name, owner, mode) = (options.name.clone(), options.owner, options.mode);
                let call = self.core.acquire(key, options, local);
                return State::Asking { call, name, owner, mode, withdraw_at };
            }
        };
        State::Looking { call }
    }

    /// A holder writes, or gives the lock back.
    fn hold_on(&mut self, at: usize, hold: &TaskHold, around: &mut ClientSurroundings<'_>) {
        let now = around.fabric.now();
        let local = self.local(now);
        if now >= hold.release_at {
            if self.hands.variety.percent(self.hands.workload.drop_percent) {
                self.core.cancel(hold.call, local);
                return self.hands.rest(at, now);
            }
            let call = self.core.release(hold.call, local);
            self.hands.tasks[at].state = State::Releasing { call, hold: hold.clone() };
            self.hands.tasks[at].due = NEVER;
            return;
        }
        if self.hands.variety.percent(self.hands.workload.again_percent) {
            return self.ask_again(at, hold, now);
        }
        if self.core.is_held(hold.call, local) {
            let write = Write {
                resource: self.resource(&hold.name),
                holder: (self.place, self.life, hold.origin.0),
                mode: hold.mode,
                fence: hold.fence,
            };
            // The world may stand still between the look at the lease and the write: that is what fences are for.
            let stream = &mut self.hands.stream;
            let delay = if stream.percent(3) { stream.around(2_000 * MS) } else { stream.around(MS) };
            around.fabric.schedule.after(delay, Scheduled::ResourceWrite(write));
        }
        let pause = self.hands.stream.around(self.hands.workload.hold_mean / 3 + MS);
        self.hands.tasks[at].due = (now + pause).min(hold.release_at.max(now + 1));
    }

    /// The owner of a hold acquires the name once more: as one that may, or as one that has forgotten.
    fn ask_again(&mut self, at: usize, hold: &TaskHold, now: Moment) {
        let local = self.local(now);
        let Some(key) = self.hands.slots[self.hands.tasks[at].slot].session else { return };
        let variety = &mut self.hands.variety;
        let options = AcquireOptions {
            name: hold.name.clone(),
            owner: hold.owner,
            mode: hold.mode,
            is_reentrant: variety.percent(70),
            wait_ms: variety.one_of(&[0, 500]),
            data: Vec::new(),
        };
        let is_reentrant = options.is_reentrant;
        let call = self.core.acquire(key, options, local);
        self.hands.tasks[at].state = State::Again { hold: hold.clone(), call, is_reentrant };
        self.hands.tasks[at].due = NEVER;
    }
}
