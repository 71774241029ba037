//! The links to the other members: two connections each, dialed from here, for what is sent from here.
//!
//! Invariants: a link is up when both its connections were welcomed, and down when either breaks; a break
//! is followed by an attempt to connect at once, so that a refusal (the process is gone) is known within a
//! moment; and so is the member's own return. Deliberately absent: what members say to each other.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use lockstep_core::{ConnectionId, Lane};
use lockstep_ring::net::SocketOptions;
use lockstep_wire::NodeId;
use lockstep_wire::peer::Beat;

/// The longest pause between two attempts.
const RETRY_MAX: Duration = Duration::from_millis(500);
/// The first pause after an attempt that failed.
const RETRY_MIN: Duration = Duration::from_millis(20);
/// How long an attempt, the welcome included, may take.
pub(super) const ATTEMPT_MAX: Duration = Duration::from_secs(2);

/// How long what was sent may stay unacknowledged before the connection counts as broken. Left alone, the kernel
/// sends it again ever later, so that a link is silent for as long after a partition as that has lasted.
const UNACKNOWLEDGED_MAX: Duration = Duration::from_secs(3);

/// The options of a link's sockets.
pub(super) fn socket_options() -> SocketOptions {
    SocketOptions { user_timeout: Some(UNACKNOWLEDGED_MAX), ..SocketOptions::default() }
}

/// One of the two connections of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wire {
    /// Not connected.
    Down,
    /// On its way, the welcome included.
    Dialing(ConnectionId),
    /// Welcomed.
    Up(ConnectionId),
}

/// The link to one member.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) node: NodeId,
    /// Where it said itself that it serves members, in this life of the process.
    announced: Option<SocketAddr>,
    /// Where the cells think that it does.
    known: Vec<SocketAddr>,
    /// Attempts that have failed in a row: the next one goes to the next address.
    failures: usize,
    /// Connections that it has to here.
    pub(super) incoming: usize,
    pub(super) control: Wire,
    pub(super) bulk: Wire,
    /// Whether the cells were told that it is up.
    pub(super) is_up: bool,
    /// Beats of all cells that go out together at the end of the turn.
    pub(super) beats: Vec<Beat>,
    /// When to try next, while it is down; how long the attempt under way may take, while it is dialing.
    pub(super) due: Instant,
    pause: Duration,
}

impl Link {
    /// A link that is to be dialed at once.
    pub(super) fn new(node: NodeId, known: Vec<SocketAddr>, now: Instant) -> Link {
        Link {
            node,
            announced: None,
            known,
            failures: 0,
            incoming: 0,
            control: Wire::Down,
            bulk: Wire::Down,
            is_up: false,
            beats: Vec::new(),
            due: now,
            pause: RETRY_MIN,
        }
    }

    /// Where to look for it next; none while nobody knows.
    pub(super) fn address(&self) -> Option<SocketAddr> {
        let others = self.known.iter().copied().filter(|address| Some(*address) != self.announced);
        let count = self.known.len() + 1;
        self.announced.into_iter().chain(others).cycle().take(count * 2).nth(self.failures % count)
    }

    pub(super) fn set_known(&mut self, known: Vec<SocketAddr>) {
        self.known = known;
    }

    pub(super) fn set_announced(&mut self, address: Option<SocketAddr>) {
        if address.is_some() && address != self.announced {
            self.announced = address;
            self.failures = 0;
        }
    }

    pub(super) fn wire(&mut self, lane: Lane) -> &mut Wire {
        match lane {
            Lane::Control => &mut self.control,
            Lane::Bulk => &mut self.bulk,
        }
    }

    /// The connection that carries a lane, once it was welcomed.
    pub(super) fn connection(&self, lane: Lane) -> Option<ConnectionId> {
        let wire = match lane {
            Lane::Control => self.control,
            Lane::Bulk => self.bulk,
        };
        match wire {
            Wire::Up(id) => Some(id),
            Wire::Down | Wire::Dialing(_) => None,
        }
    }

    /// Every connection it has.
    pub(super) fn connections(&self) -> impl Iterator<Item = ConnectionId> + use<> {
        [self.control, self.bulk].into_iter().filter_map(|wire| match wire {
            Wire::Dialing(id) | Wire::Up(id) => Some(id),
            Wire::Down => None,
        })
    }

    /// Whether neither connection stands or is being made.
    pub(super) fn is_idle(&self) -> bool {
        self.control == Wire::Down && self.bulk == Wire::Down
    }

    /// Notes that it is being dialed.
    pub(super) fn on_dialed(&mut self, now: Instant) {
        self.due = now + ATTEMPT_MAX;
    }

    /// Notes that there was no socket to dial with: tries again after a pause, not in the next turn.
    pub(super) fn on_no_socket(&mut self, now: Instant) {
        if self.is_idle() {
            self.on_down(now);
        }
    }

    /// Notes that both connections were welcomed.
    pub(super) fn on_up(&mut self) {
        self.is_up = true;
        self.failures = 0;
        self.pause = RETRY_MIN;
    }

    /// Notes that the member has connected to us: it is there, so a pause before the next attempt is over.
    pub(super) fn on_heard_of(&mut self, now: Instant) {
        if self.is_idle() {
            self.due = now;
            self.pause = RETRY_MIN;
        }
    }

    /// Notes that it broke, and when to try again: at once after a link that stood, ever later otherwise.
    pub(super) fn on_down(&mut self, now: Instant) {
        (self.control, self.bulk) = (Wire::Down, Wire::Down);
        self.beats.clear();
        if std::mem::take(&mut self.is_up) {
            self.due = now;
        } else {
            self.failures = self.failures.wrapping_add(1);
            self.due = now + self.pause;
            self.pause = (self.pause * 2).min(RETRY_MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use lockstep_ring::net::outgoing;
    use socket2::SockRef;

    use super::*;

    #[test]
    fn a_link_without_a_socket_is_tried_after_a_pause() {
        let now = Instant::now();
        let mut link = Link::new(NodeId(2), vec!["127.0.0.1:1".parse().unwrap()], now);
        link.on_no_socket(now);
        assert_eq!(link.due, now + RETRY_MIN);
        link.on_no_socket(now);
        assert!(link.due > now + RETRY_MIN, "and after a longer one then");
    }

    #[test]
    fn a_member_is_looked_for_where_it_said_and_then_where_the_cells_think() {
        let now = Instant::now();
        let address = |port: u16| SocketAddr::from(([127, 0, 0, 1], port));
        let mut link = Link::new(NodeId(2), Vec::new(), now);
        assert_eq!(link.address(), None);
        link.set_known(vec![address(1), address(2)]);
        link.set_announced(Some(address(3)));
        let mut tried = Vec::new();
        for _ in 0..4 {
            tried.extend(link.address());
            link.on_down(now);
        }
        assert_eq!(tried, [address(3), address(1), address(2), address(3)]);
        link.set_announced(Some(address(2)));
        assert_eq!(link.address(), Some(address(2)), "it has moved: there first");
    }

    #[test]
    fn a_link_does_not_wait_for_the_kernels_patience_after_a_partition() {
        let socket = outgoing("127.0.0.1:1".parse().unwrap(), None, &socket_options()).unwrap();
        assert_eq!(SockRef::from(&socket).tcp_user_timeout().unwrap(), Some(UNACKNOWLEDGED_MAX));
    }
}
