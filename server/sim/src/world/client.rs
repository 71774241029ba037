//! A client process: the real session core, driven over simulated sockets and a clock of its own.
//!
//! Invariant: the core hears of everything in the order in which it happened and at the time that its own machine's
//! clock shows; its clock goes on while it is suspended, as CLOCK_BOOTTIME does. Deliberately absent: what the client
//! wants; that is `workload`.

use std::collections::{BTreeMap, VecDeque};

use lockstep_client::core::{Action, CallId, ClientConfig, ClientCore, ConnectionId, SessionKey, Time};
use lockstep_wire::{CellId, SessionId};

use super::clock::Clock;
use super::judge::Judges;
use super::network::{Door, End, Fabric, Site, WireId};
use super::plan::Plan;
use super::schedule::Moment;
use super::workload::{Hands, TaskHold};
use crate::oracle::exclusion::Belief;
use crate::oracle::expiry::{self, Lease};
use crate::oracle::once::RequestKey;
use crate::random::{Concern, Stream};

/// Something that waits to be handed to a client.
#[derive(Debug)]
pub(super) enum ClientArrival {
    Connected(WireId),
    Refused(WireId),
    Closed(WireId),
    Bytes(WireId, Vec<u8>),
}

/// What a client needs of the world.
pub(super) struct ClientSurroundings<'a> {
    pub(super) fabric: &'a mut Fabric,
    pub(super) judges: &'a mut Judges,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) place: usize,
    pub(super) life: u64,
    pub(super) cell: CellId,
    pub(super) clock: Clock,
    pub(super) core: ClientCore,
    pub(super) hands: Hands,
    pub(super) is_paused: bool,
    pub(super) is_running: bool,
    pub(super) next_wake: Option<Moment>,
    wires: BTreeMap<ConnectionId, WireId>,
    connections: BTreeMap<WireId, ConnectionId>,
    inbox: VecDeque<ClientArrival>,
}

impl Client {
    pub(super) fn new(
        plan: &Plan,
        (place, cell): (usize, CellId),
        life: u64,
        clock: Clock,
        now: Moment,
    ) -> Client {
        let number = (place as u64) << 32 | life | 1 << 62;
        let mut identity = Stream::new(plan.seed, Concern::Identity, number);
        let endpoints = (0..plan.places()).map(Plan::address).collect();
        let mut config = ClientConfig::new(cell, endpoints, &format!("client-{place}"), identity.next_u64());
        config.try_timeout_ms = u64::from(plan.workload.ttl_ms.0) / 4;
        config.grace_ms = 15_000;
        let local = Time(clock.read(now));
        Client {
            place,
            life,
            cell,
            core: ClientCore::new(config, local),
            clock,
            hands: Hands::new(plan, place, life, now),
            is_paused: false,
            is_running: true,
            next_wake: None,
            wires: BTreeMap::new(),
            connections: BTreeMap::new(),
            inbox: VecDeque::new(),
        }
    }

    /// What its own clock shows.
    pub(super) fn local(&self, now: Moment) -> Time {
        Time(self.clock.read(now))
    }

    /// Something has come for it.
    pub(super) fn on_arrival(&mut self, arrival: ClientArrival, around: &mut ClientSurroundings<'_>) {
        if !self.is_running {
            return;
        }
        match &arrival {
            ClientArrival::Bytes(wire, bytes) => around.judges.on_told(*wire, bytes),
            ClientArrival::Closed(wire) => around.judges.on_hung_up(*wire),
            ClientArrival::Connected(_) | ClientArrival::Refused(_) => {}
        }
        self.inbox.push_back(arrival);
        if !self.is_paused {
            self.look_around(around);
        }
    }

    /// Takes what has come, looks at the clock, does what is due, and sends what comes of it.
    pub(super) fn look_around(&mut self, around: &mut ClientSurroundings<'_>) {
        if !self.is_running || self.is_paused {
            return;
        }
        while let Some(arrival) = self.inbox.pop_front() {
            let leases = self.leases(around.fabric.now());
            self.take_in(arrival, around.fabric.now());
            self.take_events(&leases, around);
        }
        let leases = self.leases(around.fabric.now());
        let local = self.local(around.fabric.now());
        self.core.on_tick(local);
        self.take_events(&leases, around);
        self.act(around);
        self.take_events(&[], around);
        self.carry_out(around);
    }

    fn take_in(&mut self, arrival: ClientArrival, now: Moment) {
        let local = self.local(now);
        match arrival {
            ClientArrival::Connected(wire) => {
                if let Some(connection) = self.connections.get(&wire) {
                    self.core.on_connected(*connection, local);
                }
            }
            ClientArrival::Refused(wire) => {
                if let Some(connection) = self.forget(wire) {
                    self.core.on_connect_failed(connection, "refused", local);
                }
            }
            ClientArrival::Closed(wire) => {
                if let Some(connection) = self.forget(wire) {
                    self.core.on_disconnected(connection, "closed by the other side", local);
                }
            }
            ClientArrival::Bytes(wire, bytes) => {
                if let Some(connection) = self.connections.get(&wire) {
                    self.core.on_bytes(*connection, &bytes, local);
                }
            }
        }
    }

    fn forget(&mut self, wire: WireId) -> Option<ConnectionId> {
        let connection = self.connections.remove(&wire)?;
        self.wires.remove(&connection);
        Some(connection)
    }

    fn carry_out(&mut self, around: &mut ClientSurroundings<'_>) {
        while let Some(action) = self.core.poll_action() {
            match action {
                Action::Connect { connection, endpoint } => {
                    let to = Plan::place_of(&endpoint).expect("every endpoint is a node's address");
                    let wire = around.fabric.dial(Site::Client(self.place), to, Door::Client);
                    self.wires.insert(connection, wire);
                    self.connections.insert(wire, connection);
                }
                Action::Send { connection, bytes } => {
                    if let Some(wire) = self.wires.get(&connection) {
                        around.judges.on_sent(*wire, &bytes);
                        around.fabric.write(*wire, End::Dialer, bytes);
                    }
                }
                Action::Disconnect { connection } => {
                    if let Some(wire) = self.wires.remove(&connection) {
                        self.connections.remove(&wire);
                        around.judges.on_hung_up(wire);
                        around.fabric.close(wire, End::Dialer);
                    }
                }
            }
        }
    }

    /// When it has to look around next.
    pub(super) fn due(&self) -> Option<Moment> {
        let core = self.core.deadline().and_then(|deadline| self.clock.moment_of(deadline.0));
        [core, self.hands.due()].into_iter().flatten().min()
    }

    /// What it believes of its sessions at a moment.
    pub(super) fn leases(&self, now: Moment) -> Vec<(SessionKey, Lease)> {
        let now = self.clock.read(now);
        let known = self.hands.sessions().filter_map(|key| {
            let session = self.core.session_id(key)?;
            let safe_until = self.core.session_safe_until(key)?.0;
            Some((key, Lease { session, client: self.place, safe_until, now }))
        });
        known.collect()
    }

    /// What it believes to hold at a moment.
    pub(super) fn beliefs(&self, now: Moment) -> Vec<Belief> {
        if !self.is_running {
            return Vec::new();
        }
        let local = self.local(now);
        let holds = self.hands.holds().filter(|hold| self.core.is_held(hold.call, local));
        holds
            .map(|hold| Belief {
                resource: (self.cell, hold.name.clone()),
                holder: (self.place, self.life, hold.origin.0),
                mode: hold.mode,
                token: hold.token,
                fence: hold.fence,
            })
            .collect()
    }

    /// Whether it may believe in a hold of its present life, named by the acquire that made it.
    pub(super) fn holds_by_right(&self, life: u64, origin: u64, now: Moment) -> bool {
        let mut holds = self.hands.holds().filter(|hold| hold.origin == CallId(origin));
        self.is_running
            && self.life == life
            && holds.any(|hold| self.core.is_held(hold.call, self.local(now)))
    }

    /// Whether it knows of an acquire that has something.
    pub(super) fn claims(&self, (session, acquire_id): RequestKey) -> bool {
        let is_it =
            |hold: &TaskHold| hold.session == session && self.core.acquire_id(hold.call) == Some(acquire_id);
        self.is_running && self.hands.holds().any(is_it)
    }

    /// A committed entry has ended a session: its owner must not believe in it any more.
    pub(super) fn on_ended(&self, session: SessionId, now: Moment, how: &str, judges: &mut Judges) {
        if !self.is_running {
            return;
        }
        for (_, lease) in self.leases(now) {
            if lease.session == session {
                judges.take(expiry::on_ended(lease, how));
            }
        }
    }

    /// The process is gone, with all it knew. Says whether there was one.
    pub(super) fn crash(&mut self, fabric: &mut Fabric) -> bool {
        let was_running = std::mem::replace(&mut self.is_running, false);
        self.inbox.clear();
        fabric.hang_up(Site::Client(self.place));
        was_running
    }

    /// Whether everything that it asked for has its outcome, and the cell has answered what it withdrew.
    pub(super) fn is_settled(&self) -> bool {
        !self.is_running || self.hands.are_idle() && self.core.outstanding_total() == 0
    }

    /// Closes its sessions; nothing more is wanted.
    pub(super) fn leave(&mut self, around: &mut ClientSurroundings<'_>) {
        if !self.is_running {
            return;
        }
        let local = self.local(around.fabric.now());
        for key in self.hands.sessions().collect::<Vec<_>>() {
            self.core.close_session(key, local);
        }
        self.take_events(&[], around);
        self.carry_out(around);
    }
}
