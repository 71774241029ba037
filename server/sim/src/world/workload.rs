//! What a client wants: sessions, and tasks that acquire, hold, write, release, withdraw, look and close.
//!
//! Invariant: every task waits for one thing at a time, and everything that it is told goes to the judges before it
//! acts on it. Deliberately absent: rates; the plan has them.

use lockstep_client::core::{AcquireOptions, CallId, Condition, Event, LockInfo, Loss, Outcome, SessionKey};
use lockstep_wire::reply::{EndReason, Grant};
use lockstep_wire::request::Mode;
use lockstep_wire::{CellId, FencingToken, LogIndex, Nonce, Owner, SessionId};

use super::client::{Client, ClientSurroundings};
use super::plan::{Plan, Workload};
use super::schedule::{Event as Scheduled, MS, Moment};
use crate::mark::Mark;
use crate::oracle::exclusion::Write;
use crate::oracle::expiry::{self, Lease};
use crate::oracle::token::Told;
use crate::oracle::violated;
use crate::random::{Concern, Stream};

/// A hold as a task has it.
#[derive(Clone, Debug)]
pub(super) struct TaskHold {
    pub(super) call: CallId,
    pub(super) name: String,
    pub(super) mode: Mode,
    pub(super) token: FencingToken,
    fence: FencingToken,
    session: SessionId,
    release_at: Moment,
}

#[derive(Clone, Debug)]
enum State {
    Idle,
    Asking { call: CallId, name: String, mode: Mode, floor: FencingToken, withdraw_at: Option<Moment> },
    Holding(TaskHold),
    Releasing { call: CallId, hold: TaskHold },
    Reading { call: CallId, name: String, floor: LogIndex },
    Closing { call: CallId },
}

#[derive(Clone, Debug)]
struct Task {
    /// Which of the client's sessions it acts for.
    slot: usize,
    owner: Owner,
    state: State,
    due: Moment,
}

#[derive(Clone, Debug)]
struct Slot {
    session: Option<SessionKey>,
    opening: Option<CallId>,
    is_in_jeopardy: bool,
    /// When a session is opened next, while there is none.
    reopen_at: Moment,
}

/// The hands of a client: see the module.
#[derive(Debug)]
pub(super) struct Hands {
    workload: Workload,
    stream: Stream,
    slots: Vec<Slot>,
    tasks: Vec<Task>,
    /// Nothing new is begun.
    is_winding_down: bool,
    /// Somebody may believe in more than before.
    has_news: bool,
}

/// Never, for tasks.
const NEVER: Moment = Moment::MAX;

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
            slots,
            tasks,
            is_winding_down: false,
            has_news: false,
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
            State::Holding(hold) => Some(hold),
            _ => None,
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

    fn task_of(&self, call: CallId) -> Option<usize> {
        self.tasks.iter().position(|task| match &task.state {
            State::Asking { call: own, .. }
            | State::Releasing { call: own, .. }
            | State::Reading { call: own, .. }
            | State::Closing { call: own } => *own == call,
            State::Holding(hold) => hold.call == call,
            State::Idle => false,
        })
    }

    fn rest(&mut self, at: usize, now: Moment) {
        let pause = self.stream.around(self.workload.think_mean);
        let due = if self.is_winding_down { NEVER } else { now + pause };
        self.tasks[at] = Task { state: State::Idle, due, ..self.tasks[at].clone() };
    }
}

impl Client {
    fn resource(&self, name: &str) -> (CellId, String) {
        (self.cell, name.to_owned())
    }

    /// Does what is due by the clock.
    pub(super) fn act(&mut self, around: &mut ClientSurroundings<'_>) {
        let now = around.fabric.now();
        self.open_due(now);
        for at in 0..self.hands.tasks.len() {
            let task = self.hands.tasks[at].clone();
            match task.state {
                State::Idle if task.due <= now => self.begin(at, around),
                State::Asking { call, withdraw_at: Some(due), .. } if due <= now => {
                    let local = self.local(now);
                    self.core.cancel(call, local);
                    self.hands.rest(at, now);
                }
                State::Holding(hold) if task.due <= now => self.hold_on(at, &hold, around),
                State::Idle
                | State::Asking { .. }
                | State::Holding(_)
                | State::Releasing { .. }
                | State::Reading { .. }
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
    fn begin(&mut self, at: usize, around: &mut ClientSurroundings<'_>) {
        let now = around.fabric.now();
        let slot = self.hands.slots[self.hands.tasks[at].slot].clone();
        let is_open = slot.opening.is_none();
        let (Some(key), true, false) = (slot.session, is_open, self.hands.is_winding_down) else {
            return self.hands.rest(at, now);
        };
        let local = self.local(now);
        let workload = self.hands.workload.clone();
        let stream = &mut self.hands.stream;
        let name = format!("/ls/sim/{}", stream.place(workload.names));
        let draw = stream.below(100);
        let state = if draw < workload.read_percent {
            let floor = around.judges.cell(self.cell).readings.floor();
            State::Reading { call: self.core.get_lock(&name, local), name, floor }
        } else if draw < workload.read_percent + workload.close_percent {
            State::Closing { call: self.core.close_session(key, local) }
        } else {
            let mode = if stream.percent(workload.shared_percent) { Mode::Shared } else { Mode::Exclusive };
            let wait_ms = stream.one_of(&[0, 50, 500, 5_000, 20_000]);
            let withdraws = stream.percent(workload.cancel_percent);
            let withdraw_at = withdraws.then(|| now + stream.around(50 * MS));
            let floor = around.judges.tokens.floor(&(self.cell, name.clone()));
            let options = AcquireOptions {
                name: name.clone(),
                owner: self.hands.tasks[at].owner,
                mode,
                is_reentrant: false,
                wait_ms,
                data: Vec::new(),
            };
            State::Asking { call: self.core.acquire(key, options, local), name, mode, floor, withdraw_at }
        };
        self.hands.tasks[at].state = state;
        self.hands.tasks[at].due = NEVER;
    }

    /// A holder writes, or gives the lock back.
    fn hold_on(&mut self, at: usize, hold: &TaskHold, around: &mut ClientSurroundings<'_>) {
        let now = around.fabric.now();
        let local = self.local(now);
        if now >= hold.release_at {
            let call = self.core.release(hold.call, local);
            self.hands.tasks[at].state = State::Releasing { call, hold: hold.clone() };
            self.hands.tasks[at].due = NEVER;
            return;
        }
        if self.core.is_held(hold.call, local) {
            let write = Write {
                resource: self.resource(&hold.name),
                holder: (self.place, self.life, hold.call.0),
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

    /// Takes what the core tells. `leases` is what the client believed just before.
    pub(super) fn take_events(
        &mut self,
        leases: &[(SessionKey, Lease)],
        around: &mut ClientSurroundings<'_>,
    ) {
        while let Some(event) = self.core.poll_event() {
            let now = around.fabric.now();
            let words = [30, self.place as u64, self.life];
            around.fabric.trace.note(now, &words, || format!("client {}: {event:?}", self.place));
            match event {
                Event::Queued { .. } => {}
                Event::Finished { call, outcome } => self.on_finished(call, outcome, around),
                Event::SessionChanged { session, condition } => {
                    self.on_condition(session, condition, leases, around);
                }
                Event::HoldLost { session, acquire, reason } => {
                    self.on_lost(session, acquire, reason, around);
                }
            }
        }
    }

    fn on_condition(
        &mut self,
        key: SessionKey,
        condition: Condition,
        leases: &[(SessionKey, Lease)],
        around: &mut ClientSurroundings<'_>,
    ) {
        let now = around.fabric.now();
        self.hands.has_news = true;
        let Some(at) = self.hands.slots.iter().position(|slot| slot.session == Some(key)) else { return };
        let was_in_jeopardy =
            std::mem::replace(&mut self.hands.slots[at].is_in_jeopardy, condition == Condition::Jeopardy);
        if was_in_jeopardy && condition == Condition::Safe {
            around.judges.set(Mark::JeopardyPassed);
        }
        let Condition::Ended(loss) = condition else { return };
        if loss == Loss::Unconfirmed {
            around.judges.set(Mark::SessionGivenUp);
        }
        let lease = leases.iter().find(|(of, _)| *of == key);
        if let (Some((_, lease)), Loss::Ended(_) | Loss::Unknown) = (lease, loss) {
            around.judges.take(expiry::on_ended(*lease, "is told to have ended"));
        }
        let pause = self.hands.stream.around(self.hands.workload.think_mean);
        let slot = &mut self.hands.slots[at];
        (slot.session, slot.opening, slot.reopen_at) = (None, None, now + pause);
        for task in 0..self.hands.tasks.len() {
            // What is under way has its own outcome to come; only holds end without one.
            if self.hands.tasks[task].slot == at && matches!(self.hands.tasks[task].state, State::Holding(_))
            {
                self.hands.rest(task, now);
            }
        }
    }

    fn on_lost(
        &mut self,
        key: SessionKey,
        acquire: CallId,
        reason: Loss,
        around: &mut ClientSurroundings<'_>,
    ) {
        let now = around.fabric.now();
        let local = self.local(now);
        let is_safe = self.core.session_safe_until(key).is_some_and(|until| local < until);
        let Some(at) = self.hands.task_of(acquire) else { return };
        if let State::Holding(hold) = &self.hands.tasks[at].state {
            if is_safe {
                around.judges.take(violated(
                    "a hold lasts as long as its session (contract 1)",
                    format!(
                        "client {} lost {} (token {}), {reason}, while its session is safe",
                        self.place, hold.name, hold.token
                    ),
                ));
            }
            self.hands.rest(at, now);
        }
    }

    fn on_finished(&mut self, call: CallId, outcome: Outcome, around: &mut ClientSurroundings<'_>) {
        let now = around.fabric.now();
        if let Some(at) = self.hands.slots.iter().position(|slot| slot.opening == Some(call)) {
            return self.on_open_finished(at, &outcome, around);
        }
        let Some(at) = self.hands.task_of(call) else { return };
        match (self.hands.tasks[at].state.clone(), outcome) {
            (State::Asking { name, mode, floor, .. }, Outcome::Granted(grant)) => {
                self.on_granted(at, call, name, (mode, floor), grant, around);
            }
            (State::Releasing { hold, .. }, Outcome::Released) => {
                let verdict =
                    around.judges.cell(self.cell).acknowledgements.on_released(hold.session, hold.token);
                around.judges.take(verdict);
                self.hands.rest(at, now);
            }
            (State::Releasing { hold, .. }, Outcome::StaleToken) => {
                self.on_stale_release(at, &hold, around);
            }
            (State::Reading { name, floor, .. }, Outcome::Lock(info)) => {
                self.on_read(&name, floor, &info, around);
                self.hands.rest(at, now);
            }
            (State::Asking { .. }, Outcome::Lost { .. }) => {
                around.judges.set(Mark::GrantWasLost);
                self.hands.rest(at, now);
            }
            // The hold's own call has nothing more to say.
            (State::Holding(_), _) => {}
            (_, _) => self.hands.rest(at, now),
        }
    }

    fn on_open_finished(&mut self, at: usize, outcome: &Outcome, around: &mut ClientSurroundings<'_>) {
        let now = around.fabric.now();
        self.hands.slots[at].opening = None;
        let session = self.hands.slots[at].session.and_then(|key| self.core.session_id(key));
        match (outcome, session) {
            (Outcome::Opened { .. }, Some(session)) => {
                let verdict = around.judges.cell(self.cell).acknowledgements.on_opened(session);
                around.judges.take(verdict);
            }
            (_, _) => {
                let slot = &mut self.hands.slots[at];
                (slot.session, slot.reopen_at) = (None, now + 100 * MS);
            }
        }
    }

    fn on_granted(
        &mut self,
        at: usize,
        call: CallId,
        name: String,
        (mode, floor): (Mode, FencingToken),
        grant: Grant,
        around: &mut ClientSurroundings<'_>,
    ) {
        let now = around.fabric.now();
        let key = self.hands.slots[self.hands.tasks[at].slot].session;
        let session = key.and_then(|key| self.core.session_id(key));
        let (Some(session), Some(acquire_id)) = (session, self.core.acquire_id(call)) else {
            // Lost in the same breath; its event follows.
            return self.hands.rest(at, now);
        };
        self.hands.has_news = true;
        let told = Told {
            resource: self.resource(&name),
            holder: (self.place, self.life, call.0),
            mode,
            token: grant.token,
            floor,
        };
        let verdict = around.judges.tokens.on_granted(&told);
        around.judges.take(verdict);
        let cell = around.judges.cell(self.cell);
        cell.readings.on_acknowledged(grant.token.index());
        let verdict = cell.acknowledgements.on_granted(session, acquire_id, grant.token, grant.fence);
        around.judges.take(verdict);
        let release_at = now + self.hands.stream.around(self.hands.workload.hold_mean);
        let hold = TaskHold { call, name, mode, token: grant.token, fence: grant.fence, session, release_at };
        self.hands.tasks[at].state = State::Holding(hold);
        self.hands.tasks[at].due = now;
    }

    /// Nobody but its owner ends a hold while its session lives.
    fn on_stale_release(&mut self, at: usize, hold: &TaskHold, around: &mut ClientSurroundings<'_>) {
        let now = around.fabric.now();
        let local = self.local(now);
        let key = self.hands.slots[self.hands.tasks[at].slot].session;
        let is_same = key.is_some_and(|key| {
            self.core.session_id(key) == Some(hold.session)
                && self.core.session_safe_until(key).is_some_and(|until| local < until)
        });
        if is_same {
            around.judges.take(violated(
                "a hold lasts as long as its session (contract 1)",
                format!(
                    "client {} gives {} back (token {}) and it is gone",
                    self.place, hold.name, hold.token
                ),
            ));
        }
        self.hands.rest(at, now);
    }

    fn on_read(&mut self, name: &str, floor: LogIndex, info: &LockInfo, around: &mut ClientSurroundings<'_>) {
        let holders =
            info.holders.iter().map(|holder| (holder.session, holder.acquire_id, holder.token)).collect();
        let revision = LogIndex(info.revision.0 & ((1 << 48) - 1));
        let verdict = around.judges.cell(self.cell).readings.on_read(name, revision, &holders, floor);
        around.judges.take(verdict);
    }
}

/// Why a session that a committed entry ended may be believed in by nobody.
pub(super) fn how(reason: EndReason) -> &'static str {
    match reason {
        EndReason::Expired => "expires",
        EndReason::Closed => "is closed",
        EndReason::Released
        | EndReason::Cancelled
        | EndReason::Revoked
        | EndReason::MaxHold
        | EndReason::CellRestored => "ends",
    }
}
