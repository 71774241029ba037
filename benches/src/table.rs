//! A lock table under a benchmark, and the clients that fill it.
//!
//! Invariant: the log's index grows by one per entry, as in a cell. Deliberately absent: the clock, and what is measured.

use lockstep_core::table::{Answer, Limits, Outcome, Outcomes, Table};
use lockstep_wire::entry::Command;
use lockstep_wire::limit::TTL_MS_MAX;
use lockstep_wire::request::{Acquire, Mode, Mutation};
use lockstep_wire::{Epoch, FencingToken, LogIndex, Nonce, Owner, RequestId, Rows, SessionId};

/// A client as the table sees it.
#[derive(Clone, Copy, Debug)]
pub struct Client {
    /// Its session.
    pub session: SessionId,
    /// What proves that the session is its own.
    pub nonce: Nonce,
    /// Its last request; whatever was answered to it has been seen.
    pub last: RequestId,
}

/// A hold, as whoever releases it must name it.
#[derive(Clone, Copy, Debug)]
pub struct Hold {
    /// The acquire that made it.
    pub acquire_id: RequestId,
    /// Its token, if it was granted by its own entry.
    pub token: FencingToken,
}

/// A table and the log's index that it has reached.
#[derive(Debug)]
pub struct Bench {
    /// The table.
    pub table: Table,
    /// The index of the last entry.
    pub index: LogIndex,
    outcomes: Outcomes,
    /// The entries since they were taken last, if they are kept.
    entries: Option<Vec<Box<[u8]>>>,
}

/// The name of a lock that a filled table holds. Names that one client holds are not beside each other.
pub fn filling(session: SessionId, number: u64) -> String {
    let place = (session.0 << 16 | number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    format!("/ls/filling/{place:016x}")
}

impl Default for Bench {
    fn default() -> Bench {
        Bench::new()
    }
}

impl Bench {
    /// A table in which each of `sessions` clients holds `locks_each` locks, and the clients with their holds by number.
    pub fn filled(sessions: u64, locks_each: u64) -> (Bench, Vec<(Client, Vec<Hold>)>) {
        let mut bench = Bench::new();
        let clients = bench.fill(sessions, locks_each);
        (bench, clients)
    }

    /// An empty table.
    pub fn new() -> Bench {
        let table = Table::new(Epoch(0), Limits::default());
        Bench { table, index: LogIndex(0), outcomes: Outcomes::new(), entries: None }
    }

    /// Fills a table in which there is no lock.
    pub fn fill(&mut self, sessions: u64, locks_each: u64) -> Vec<(Client, Vec<Hold>)> {
        let clients: Vec<Client> = (0..sessions).map(|number| self.open(number)).collect();
        let fill = |mut client: Client| {
            let session = client.session;
            let hold = |number| self.acquire(&mut client, &filling(session, number));
            let holds = (0..locks_each).map(hold).collect();
            (client, holds)
        };
        let clients = clients.into_iter().map(fill).collect();
        assert_eq!(self.table.locks_len() as u64, sessions * locks_each);
        clients
    }

    /// From here on entries are kept until they are taken, or no more.
    pub fn keep_entries(&mut self, is_kept: bool) {
        self.entries = is_kept.then(Vec::new);
    }

    /// The entries that were kept, as a log has them; the last one is the one at the index.
    pub fn take_entries(&mut self) -> Vec<Box<[u8]>> {
        self.entries.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Applies the next entry.
    pub fn apply(&mut self, command: &Command<'_>) {
        self.index = self.index.next();
        self.outcomes.clear();
        self.table.apply(self.index, command, &mut self.outcomes);
        if let Some(entries) = &mut self.entries {
            let mut entry = Vec::new();
            command.encode(&mut entry);
            entries.push(entry.into_boxed_slice());
        }
    }

    fn open(&mut self, number: u64) -> Client {
        let mut nonce = Nonce::default();
        nonce.0[..8].copy_from_slice(&number.to_le_bytes());
        self.apply(&Command::OpenSession { client_id: "bench", ttl_ms: TTL_MS_MAX, nonce });
        Client { session: SessionId(self.index.0), nonce, last: RequestId(0) }
    }

    /// Acquires, or lines up.
    pub fn acquire(&mut self, client: &mut Client, name: &str) -> Hold {
        let seen = [client.last];
        client.last.0 += 1;
        self.apply(&Command::Acquire(Acquire {
            mutation: Mutation { session: client.session, request_id: client.last, seen: Rows::Slice(&seen) },
            owner: Owner(client.last.0),
            mode: Mode::Exclusive,
            is_reentrant: false,
            permits: 0,
            wait_ms: 30_000,
            lock_delay_ms: 0,
            max_hold_ms: 0,
            names: Rows::Slice(&[name]),
            data: b"",
        }));
        Hold { acquire_id: client.last, token: FencingToken(self.index.0) }
    }

    /// Releases.
    pub fn release(&mut self, client: &mut Client, name: &str, hold: Hold) {
        let seen = [client.last];
        client.last.0 += 1;
        self.apply(&Command::Release {
            mutation: Mutation { session: client.session, request_id: client.last, seen: Rows::Slice(&seen) },
            acquire_id: hold.acquire_id,
            name,
            token: hold.token,
        });
    }

    /// Releases a lock and takes it again: two entries.
    pub fn retake(&mut self, client: &mut Client, name: &str, hold: &mut Hold) {
        self.release(client, name, *hold);
        *hold = self.acquire(client, name);
    }

    /// What the last entry answered.
    pub fn answers(&self) -> Vec<Answer> {
        let answer = |outcome: &Outcome| match outcome {
            Outcome::Reply { answer, .. } => Some(*answer),
            _ => None,
        };
        self.outcomes.iter().filter_map(answer).collect()
    }
}
