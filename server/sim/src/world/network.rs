//! The network: TCP connections over links that delay, break and are cut.
//!
//! Invariant: what comes out of a wire is a prefix of what went in, in order; a reset loses what was on its way,
//! a cut link only delays it. Within a connection TCP leaves neither loss nor duplicates nor another order: a packet
//! that was lost shows as a piece that is late, and everything behind it waits. Across connections all of that
//! happens: two lanes overtake each other, and what was sent again over a new connection may meet what came by the old.
//!
//! A connection is half open when one end has given up and the other has not heard: its machine lost power, or what it
//! sent between members stayed unacknowledged for as long as the server lets it. The other end learns of it when it
//! sends something and the machine, up again, disowns it. Deliberately absent: what the bytes mean, who decides that a
//! link breaks, and keep-alive probes, which take longer than a run has patience.

use std::collections::{BTreeMap, BTreeSet};

use super::schedule::{Event, MS, Moment, Schedule};
use super::trace::{Trace, number_of};
use crate::random::Stream;

/// How long what was sent to a member may stay unacknowledged before the sender gives the connection up.
const UNACKNOWLEDGED_MAX: u64 = 3_000 * MS;

/// One connection; never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WireId(pub u64);

/// One of the two ends of a wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum End {
    /// Whoever dialed.
    Dialer,
    /// Whoever accepted.
    Acceptor,
}

impl End {
    /// The end at the other side.
    pub fn other(self) -> End {
        match self {
            End::Dialer => End::Acceptor,
            End::Acceptor => End::Dialer,
        }
    }
}

/// A machine on the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Site {
    /// A server, by its place.
    Node(usize),
    /// A client, by its place.
    Client(usize),
}

/// What a node's listener is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Door {
    /// The port for clients.
    Client,
    /// The port for members.
    Peer,
}

#[derive(Debug)]
enum Parcel {
    Bytes(Vec<u8>),
    Close,
}

#[derive(Debug, Default)]
struct Direction {
    /// Nothing comes out before this: order is kept.
    last_arrival: Moment,
    /// What a cut link keeps back.
    held: Vec<Parcel>,
    /// Since when it has kept something back.
    held_since: Moment,
}

#[derive(Debug)]
struct Wire {
    dialer: Site,
    acceptor: Site,
    door: Door,
    /// Whether each end still holds its socket.
    is_open: [bool; 2],
    to_dialer: Direction,
    to_acceptor: Direction,
    /// A reset has lost what was on its way.
    is_reset: bool,
}

impl Wire {
    fn site(&self, end: End) -> Site {
        match end {
            End::Dialer => self.dialer,
            End::Acceptor => self.acceptor,
        }
    }

    fn towards(&mut self, end: End) -> &mut Direction {
        match end {
            End::Dialer => &mut self.to_dialer,
            End::Acceptor => &mut self.to_acceptor,
        }
    }
}

/// See the module.
#[derive(Debug)]
pub struct Network {
    stream: Stream,
    wires: BTreeMap<WireId, Wire>,
    dialed: u64,
    /// Directions in which nothing gets through.
    cut: BTreeSet<(Site, Site)>,
    latency_mean: u64,
    latency_min: u64,
    /// How often a piece is late by a retransmission, in a thousand.
    late_permille: u64,
    /// Directions in which every piece is late: until when, and by about how much.
    lags: BTreeMap<(Site, Site), (Moment, u64)>,
}

/// What the network, the nodes and the clients have in common: time and the trace.
#[derive(Debug)]
pub struct Fabric {
    /// What is going to happen.
    pub schedule: Schedule,
    /// What has happened.
    pub trace: Trace,
    /// The network.
    pub network: Network,
}

impl Network {
    /// A network without connections.
    pub fn new(stream: Stream, latency_mean: u64, late_permille: u64) -> Network {
        Network {
            stream,
            wires: BTreeMap::new(),
            dialed: 0,
            cut: BTreeSet::new(),
            latency_mean,
            latency_min: latency_mean / 4 + 1_000,
            late_permille,
            lags: BTreeMap::new(),
        }
    }

    /// No piece is late any more.
    pub fn calm_down(&mut self) {
        self.late_permille = 0;
        self.lags.clear();
    }

    /// Until a moment every piece in this direction is late by about so much.
    pub fn lag(&mut self, from: Site, to: Site, until: Moment, by: u64) {
        self.lags.insert((from, to), (until, by));
    }

    fn latency_between(&mut self, from: Site, to: Site, now: Moment) -> u64 {
        let latency = self.latency();
        match self.lags.get(&(from, to)) {
            Some((until, by)) if now < *until => latency + self.stream.around(*by),
            Some(_) | None => latency,
        }
    }

    fn latency(&mut self) -> u64 {
        let mut latency = self.latency_min + self.stream.around(self.latency_mean);
        if self.late_permille > 0 && self.stream.below(1_000) < self.late_permille {
            latency += self.stream.between(5, 220) * MS;
        }
        latency
    }

    fn is_cut(&self, from: Site, to: Site) -> bool {
        self.cut.contains(&(from, to))
    }

    /// Whether a wire's end still holds its socket.
    pub fn is_open(&self, wire: WireId, end: End) -> bool {
        self.wires.get(&wire).is_some_and(|wire| wire.is_open[end as usize])
    }

    /// Who is at an end, and which port was dialed.
    pub fn site(&self, wire: WireId, end: End) -> Option<(Site, Door)> {
        self.wires.get(&wire).map(|wire| (wire.site(end), wire.door))
    }

    /// Connections that a machine has an end of.
    fn wires_of(&self, site: Site) -> Vec<(WireId, End)> {
        let mut found = Vec::new();
        for (id, wire) in &self.wires {
            for end in [End::Dialer, End::Acceptor] {
                if wire.site(end) == site {
                    found.push((*id, end));
                }
            }
        }
        found
    }
}

impl Fabric {
    /// What time it is.
    pub fn now(&self) -> Moment {
        self.schedule.now()
    }

    /// Begins to connect to a node. Without an answer whoever dials gives up by himself.
    pub fn dial(&mut self, from: Site, to: usize, door: Door) -> WireId {
        let network = &mut self.network;
        network.dialed += 1;
        let id = WireId(network.dialed);
        let acceptor = Site::Node(to);
        let wire = Wire {
            dialer: from,
            acceptor,
            door,
            is_open: [true, false],
            to_dialer: Direction::default(),
            to_acceptor: Direction::default(),
            is_reset: false,
        };
        network.wires.insert(id, wire);
        if !network.is_cut(from, acceptor) {
            let latency = network.latency_between(from, acceptor, self.schedule.now());
            self.schedule.after(latency, Event::Dial { wire: id });
        }
        id
    }

    /// The target of a dial answers: it accepts, or nobody listens.
    pub fn answer_dial(&mut self, wire: WireId, is_accepted: bool) {
        let network = &mut self.network;
        let Some(state) = network.wires.get_mut(&wire) else { return };
        state.is_open[End::Acceptor as usize] = is_accepted;
        let (from, to) = (state.acceptor, state.dialer);
        if network.is_cut(from, to) {
            return;
        }
        let now = self.schedule.now();
        let at = now + self.network.latency_between(from, to, now);
        if let Some(state) = self.network.wires.get_mut(&wire) {
            state.to_dialer.last_arrival = at;
        }
        self.schedule.at(at, Event::Answer { wire, is_refused: !is_accepted });
    }

    /// Puts bytes into a wire.
    pub fn write(&mut self, wire: WireId, from: End, bytes: Vec<u8>) {
        if bytes.is_empty() || !self.network.is_open(wire, from) {
            return;
        }
        let words = [10, wire.0, from as u64, number_of(&bytes)];
        let length = bytes.len();
        self.trace
            .note(self.schedule.now(), &words, || format!("wire {} {from:?} sends {length} bytes", wire.0));
        self.convey(wire, from.other(), Parcel::Bytes(bytes));
    }

    /// Closes an end; the other one gets what was sent before, and then learns of it.
    pub fn close(&mut self, wire: WireId, end: End) {
        let Some(state) = self.network.wires.get_mut(&wire) else { return };
        if std::mem::replace(&mut state.is_open[end as usize], false) {
            self.convey(wire, end.other(), Parcel::Close);
        }
        self.forget_if_closed(wire);
    }

    /// Both ends learn that the wire is gone, as after a timeout or a reset; what was on its way is lost.
    pub fn reset(&mut self, wire: WireId) {
        let Some(state) = self.network.wires.get_mut(&wire) else { return };
        state.is_reset = true;
        state.to_dialer.held.clear();
        state.to_acceptor.held.clear();
        for end in [End::Dialer, End::Acceptor] {
            let delay = self.network.latency();
            self.schedule.after(delay, Event::Closed { wire, end });
        }
    }

    /// An end has learned that its wire is gone.
    pub fn on_closed(&mut self, wire: WireId, end: End) {
        if let Some(state) = self.network.wires.get_mut(&wire) {
            state.is_open[end as usize] = false;
        }
        self.forget_if_closed(wire);
    }

    fn forget_if_closed(&mut self, wire: WireId) {
        if self.network.wires.get(&wire).is_some_and(|state| state.is_open == [false, false]) {
            self.network.wires.remove(&wire);
        }
    }

    fn convey(&mut self, wire: WireId, to: End, parcel: Parcel) {
        let now = self.schedule.now();
        let Some(state) = self.network.wires.get(&wire) else { return };
        if state.is_reset {
            return;
        }
        let (source, target, door) = (state.site(to.other()), state.site(to), state.door);
        let latency = self.network.latency_between(source, target, now);
        let is_cut = self.network.is_cut(source, target);
        let Some(state) = self.network.wires.get_mut(&wire) else { return };
        let direction = state.towards(to);
        if is_cut || !direction.held.is_empty() {
            if direction.held.is_empty() {
                direction.held_since = now;
                if door == Door::Peer {
                    let end = to.other();
                    self.schedule.after(UNACKNOWLEDGED_MAX, Event::Unacknowledged { wire, end, since: now });
                }
            }
            direction.held.push(parcel);
            return;
        }
        let at = direction.last_arrival.max(now + latency);
        direction.last_arrival = at;
        let event = match parcel {
            Parcel::Bytes(bytes) => Event::Arrive { wire, end: to, bytes },
            Parcel::Close => Event::Closed { wire, end: to },
        };
        self.schedule.at(at, event);
    }

    /// What an end has sent since then was not acknowledged: it gives the connection up, and the other end does
    /// not know. Says whether it did.
    pub fn on_unacknowledged(&mut self, wire: WireId, end: End, since: Moment) -> bool {
        let Some(state) = self.network.wires.get_mut(&wire) else { return false };
        let direction = state.towards(end.other());
        if direction.held.is_empty() || direction.held_since != since {
            return false;
        }
        direction.held.clear();
        self.schedule.after(0, Event::Closed { wire, end });
        true
    }

    /// Bytes came to an end that is closed. Its machine says so, unless it is not there.
    pub fn on_undeliverable(&mut self, wire: WireId, end: End, is_machine_up: bool) {
        let Some(state) = self.network.wires.get(&wire) else { return };
        if state.is_reset || !state.is_open[end.other() as usize] {
            return;
        }
        let door = state.door;
        let sender = end.other();
        if is_machine_up {
            if !self.is_cut_towards(wire, sender) {
                let delay = self.network.latency();
                self.schedule.after(delay, Event::Closed { wire, end: sender });
            }
        } else if door == Door::Peer {
            self.schedule.after(UNACKNOWLEDGED_MAX, Event::Closed { wire, end: sender });
        }
    }

    /// Whether bytes that arrive are still wanted.
    pub fn is_deliverable(&self, wire: WireId, end: End) -> bool {
        self.network.wires.get(&wire).is_some_and(|state| !state.is_reset && state.is_open[end as usize])
    }

    /// A process is gone and its machine says so to the other ends. What it had sent may be lost or not.
    pub fn hang_up(&mut self, site: Site) {
        for (wire, end) in self.network.wires_of(site) {
            let loses = self.network.stream.percent(50);
            if let Some(state) = self.network.wires.get_mut(&wire)
                && loses
            {
                state.is_reset = true;
            }
            self.abandon(wire, end);
            let delay = self.network.latency();
            if !self.is_cut_towards(wire, end.other()) {
                self.schedule.after(delay, Event::Closed { wire, end: end.other() });
            } else if let Some(state) = self.network.wires.get_mut(&wire) {
                state.is_reset = false;
                state.towards(end.other()).held.push(Parcel::Close);
            }
        }
    }

    /// A machine is gone without a word.
    pub fn fall_silent(&mut self, site: Site) {
        for (wire, end) in self.network.wires_of(site) {
            self.abandon(wire, end);
        }
    }

    /// A machine that had gone is back, and does not know the connections of its earlier life.
    pub fn disown(&mut self, site: Site) {
        for (wire, end) in self.network.wires_of(site) {
            if !self.network.is_open(wire, end) && self.network.is_open(wire, end.other()) {
                let delay = self.network.latency();
                self.schedule.after(delay, Event::Closed { wire, end: end.other() });
            }
        }
    }

    fn abandon(&mut self, wire: WireId, end: End) {
        if let Some(state) = self.network.wires.get_mut(&wire) {
            state.is_open[end as usize] = false;
            state.towards(end).held.clear();
        }
        self.forget_if_closed(wire);
    }

    fn is_cut_towards(&self, wire: WireId, to: End) -> bool {
        let state = self.network.wires.get(&wire);
        state.is_some_and(|state| self.network.is_cut(state.site(to.other()), state.site(to)))
    }

    /// Nothing gets through in this direction from now on. Says whether it did.
    pub fn cut(&mut self, from: Site, to: Site) -> bool {
        self.network.cut.insert((from, to))
    }

    /// What was held back in this direction arrives, and more gets through. Says whether it was cut.
    pub fn mend(&mut self, from: Site, to: Site) -> bool {
        if !self.network.cut.remove(&(from, to)) {
            return false;
        }
        for (wire, end) in self.network.wires_of(to) {
            if self.network.site(wire, end.other()).is_none_or(|(site, _)| site != from) {
                continue;
            }
            let Some(state) = self.network.wires.get_mut(&wire) else { continue };
            for parcel in std::mem::take(&mut state.towards(end).held) {
                self.convey(wire, end, parcel);
            }
        }
        true
    }

    /// Every link gets through again.
    pub fn mend_all(&mut self) {
        for (from, to) in self.network.cut.clone() {
            self.mend(from, to);
        }
    }

    /// The connections between two machines.
    pub fn wires_between(&self, one: Site, other: Site) -> Vec<WireId> {
        self.network
            .wires_of(one)
            .into_iter()
            .filter(|(wire, end)| {
                self.network.site(*wire, end.other()).is_some_and(|(site, _)| site == other)
            })
            .map(|(wire, _)| wire)
            .collect()
    }
}
