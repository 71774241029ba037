//! Which member to talk to, and when to try the next one.
//!
//! Invariant: at most one connection exists, to the member believed to lead. Back-off grows with every
//! member that was left and is reset only when a session, or without one a call, is confirmed: a member that
//! accepts connections and confirms nothing must not be hammered. Deliberately absent: what is said on the connection.

use super::chance::Chance;
use super::outcome::ConnectionId;
use super::time::Time;

/// Hints followed in a row without a confirmation; two members that point at each other are not believed for ever.
const HOPS_MAX: u32 = 3;
/// The first pause, in ms; doubled with each member that was left.
const BACK_OFF_MS_MIN: u64 = 10;
/// The longest pause, in ms.
const BACK_OFF_MS_MAX: u64 = 1_000;
/// What is remembered of the last trouble, in bytes.
const TROUBLE_BYTES_MAX: usize = 600;

/// How far the connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Nobody needs it.
    Idle,
    /// The next member is tried at this moment.
    Pausing(Time),
    /// The driver connects, until this moment.
    Connecting(ConnectionId, Time),
    /// Hello was sent, and is waited for until this moment.
    Greeting(ConnectionId, Time),
    /// The member has welcomed us.
    Ready(ConnectionId),
}

#[derive(Debug)]
pub(super) struct Link {
    endpoints: Vec<String>,
    /// Which endpoint is next when there is no hint.
    cursor: usize,
    hint: Option<String>,
    hops: u32,
    /// A member that was silent, and until when nobody's word leads back to it.
    silent: Option<(String, Time)>,
    /// Members left since the last confirmation.
    left: u32,
    connections: u64,
    pub(super) phase: Phase,
    /// The member that is, or was last, talked to.
    pub(super) address: String,
    /// The last thing that went wrong, for people.
    pub(super) trouble: String,
}

impl Link {
    /// Begins with the endpoint that is named, or with any.
    pub(super) fn new(endpoints: Vec<String>, first: Option<usize>, chance: &mut Chance) -> Link {
        assert!(!endpoints.is_empty(), "a client needs at least one endpoint");
        let drawn = usize::try_from(chance.below(endpoints.len() as u64));
        Link {
            cursor: first.unwrap_or(drawn.expect("below the number of endpoints")) % endpoints.len(),
            endpoints,
            hint: None,
            hops: 0,
            silent: None,
            left: 0,
            connections: 0,
            phase: Phase::Idle,
            address: String::new(),
            trouble: "no member was tried yet".to_owned(),
        }
    }

    /// The connection that exists, in whatever phase.
    pub(super) fn connection(&self) -> Option<ConnectionId> {
        match self.phase {
            Phase::Idle | Phase::Pausing(_) => None,
            Phase::Connecting(connection, _) | Phase::Greeting(connection, _) | Phase::Ready(connection) => {
                Some(connection)
            }
        }
    }

    pub(super) fn ready(&self) -> Option<ConnectionId> {
        match self.phase {
            Phase::Ready(connection) => Some(connection),
            Phase::Idle | Phase::Pausing(_) | Phase::Connecting(..) | Phase::Greeting(..) => None,
        }
    }

    /// When the phase ends by itself.
    pub(super) fn deadline(&self) -> Time {
        match self.phase {
            Phase::Pausing(at) | Phase::Connecting(_, at) | Phase::Greeting(_, at) => at,
            Phase::Idle | Phase::Ready(_) => Time::NEVER,
        }
    }

    /// The member has not answered in time. Until then it is passed over: the others name it as their leader until they
    /// have noticed too, and each visit would cost a whole try.
    pub(super) fn distrust(&mut self, until: Time) {
        self.silent = Some((self.address.clone(), until));
    }

    fn is_distrusted(&self, address: &str, now: Time) -> bool {
        self.silent.as_ref().is_some_and(|(silent, until)| silent == address && now < *until)
    }

    /// Gives the member up and decides when to try the next: at once when a hint says where to go.
    pub(super) fn leave(&mut self, now: Time, trouble: &str, hint: &str, chance: &mut Chance) {
        self.trouble = format!("{}: {trouble}", self.address);
        shorten(&mut self.trouble, TROUBLE_BYTES_MAX);
        let is_usable = !hint.is_empty()
            && hint != self.address
            && self.hops < HOPS_MAX
            && !self.is_distrusted(hint, now);
        if is_usable {
            self.hops += 1;
            self.hint = Some(hint.to_owned());
            self.phase = Phase::Pausing(now);
            return;
        }
        self.hops = 0;
        self.hint = None;
        self.phase = Phase::Pausing(now.plus_ns(self.pause_ns(chance)));
        self.left = self.left.saturating_add(1);
    }

    /// The pause before the next member: none after the first one left, then doubling, half of it by chance.
    fn pause_ns(&self, chance: &mut Chance) -> u64 {
        let Some(doublings) = self.left.checked_sub(1) else { return 0 };
        let ms = BACK_OFF_MS_MAX.min(BACK_OFF_MS_MIN << doublings.min(10));
        let half = ms * 500_000;
        half + chance.below(half)
    }

    /// Begins to connect, to the member of the hint or else to the next endpoint.
    pub(super) fn connect(&mut self, now: Time, until: Time) -> (ConnectionId, String) {
        self.address = self.hint.take().unwrap_or_else(|| self.next_endpoint(now));
        self.connections += 1;
        let connection = ConnectionId(self.connections);
        self.phase = Phase::Connecting(connection, until);
        (connection, self.address.clone())
    }

    /// The next endpoint in turn, but if there are others neither the member that was just left nor one that was silent.
    fn next_endpoint(&mut self, now: Time) -> String {
        let count = self.endpoints.len();
        let in_turn = (0..count).map(|step| (self.cursor + step) % count);
        let is_good = |at: &usize| {
            let endpoint = &self.endpoints[*at];
            *endpoint != self.address && !self.is_distrusted(endpoint, now)
        };
        let at = in_turn.clone().find(is_good).unwrap_or(self.cursor);
        self.cursor = (at + 1) % count;
        self.endpoints[at].clone()
    }

    /// The member is good: the next trouble is met without delay again.
    pub(super) fn confirm(&mut self) {
        self.left = 0;
        self.hops = 0;
    }
}

/// Cuts a text to so many bytes at most, between two characters.
pub(crate) fn shorten(text: &mut String, bytes_max: usize) {
    let whole = (0..=bytes_max.min(text.len())).rev().find(|at| text.is_char_boundary(*at));
    text.truncate(whole.unwrap_or(0));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silent_member_is_passed_over_for_a_while_whoever_names_it() {
        let endpoints: Vec<String> = ["a:1", "b:1", "c:1"].map(str::to_owned).into();
        let (now, until) = (Time(0), Time(2_000));
        for (seed, hint) in (0..20).flat_map(|seed| endpoints.iter().map(move |hint| (seed, hint))) {
            let mut chance = Chance::new(seed);
            let mut link = Link::new(endpoints.clone(), None, &mut chance);
            link.connect(now, Time::NEVER);
            link.leave(now, "does not lead", hint, &mut chance);
            let (_, silent) = link.connect(now, Time::NEVER);
            link.distrust(until);
            link.leave(now, "gave no answer in time", "", &mut chance);
            for _ in 0..6 {
                let (_, next) = link.connect(now, Time::NEVER);
                assert_ne!(next, silent);
                link.leave(now, "does not lead", &silent, &mut chance);
            }
            link.leave(until, "does not lead", &silent, &mut chance);
            assert_eq!(link.connect(until, Time::NEVER).1, silent, "it is believed in again");
        }
    }

    #[test]
    fn the_endpoint_that_is_named_is_tried_first_and_the_others_after_it() {
        let endpoints: Vec<String> = ["a:1", "b:1", "c:1"].map(str::to_owned).into();
        for seed in 0..20 {
            let mut chance = Chance::new(seed);
            let mut link = Link::new(endpoints.clone(), Some(2), &mut chance);
            assert_eq!(link.connect(Time(0), Time::NEVER).1, "c:1");
            link.leave(Time(0), "does not lead", "", &mut chance);
            assert_eq!(link.connect(Time(0), Time::NEVER).1, "a:1");
        }
    }

    #[test]
    fn the_only_member_is_tried_again_however_silent_it_was() {
        let mut chance = Chance::new(1);
        let mut alone = Link::new(vec!["a:1".to_owned()], None, &mut chance);
        alone.connect(Time(0), Time::NEVER);
        alone.distrust(Time(2_000));
        alone.leave(Time(0), "gave no answer in time", "", &mut chance);
        assert_eq!(alone.connect(Time(0), Time::NEVER).1, "a:1");
    }
}
