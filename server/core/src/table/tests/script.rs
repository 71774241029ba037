//! Interaction scripts: one entry or reading a line, and under it what came of it.
//!
//! `open A`, `A acquire 1 job x wait=9 owner=2 re seen=1,2`, `A release 2 of=1 job token=3`, `A cancel 2 of=1`,
//! `timeout A 1`, `expire A B`, `close A`, `reap`, `end-quiet`, `get job`, `check job 3`, `session A`, `replay <request>`. Every
//! line but the readings is an entry; the first has index 1, and with epoch 0 an index is a token. `restore 1` goes on
//! with what the table is restored to under epoch 1.

use std::collections::BTreeMap;
use std::fmt::Write;

use lockstep_wire::entry::{Command, Silence};
use lockstep_wire::reply::EndReason;
use lockstep_wire::request::{Acquire, Mode, Mutation};
use lockstep_wire::{Epoch, FencingToken, Nonce, Owner, RequestId, Rows, SessionId};

use super::invariants::assert_coherent;
use crate::table::{Answer, LimitKind, Limits, Outcome, Table};

/// A table and the names that a script has given its sessions.
pub(super) struct Script {
    pub(super) table: Table,
    sessions: BTreeMap<String, SessionId>,
    pub(super) trace: String,
}

/// Runs a script on a new table and gives its trace.
pub(super) fn run(limits: Limits, script: &str) -> String {
    let mut run = Script::new(limits);
    run.lines(script);
    run.trace
}

/// The words of a line, and its `key=value` options by key.
struct Line<'a> {
    words: Vec<&'a str>,
    options: BTreeMap<&'a str, &'a str>,
}

impl<'a> Line<'a> {
    fn parse(line: &'a str) -> Line<'a> {
        let mut parsed = Line { words: Vec::new(), options: BTreeMap::new() };
        for word in line.split_whitespace() {
            match word.split_once('=') {
                Some((key, value)) => {
                    parsed.options.insert(key, value);
                }
                None => parsed.words.push(word),
            }
        }
        parsed
    }

    fn number(&self, key: &str) -> u64 {
        self.options.get(key).map_or(0, |value| value.parse().expect("an option is a number"))
    }

    fn seen(&self) -> Vec<RequestId> {
        let list = self.options.get("seen").copied().unwrap_or_default();
        list.split(',')
            .filter(|id| !id.is_empty())
            .map(|id| RequestId(id.parse().expect("seen is a list of ids")))
            .collect()
    }
}

impl Script {
    pub(super) fn new(limits: Limits) -> Script {
        Script { table: Table::new(Epoch(0), limits), sessions: BTreeMap::new(), trace: String::new() }
    }

    pub(super) fn lines(&mut self, script: &str) {
        for line in script.lines().map(str::trim).filter(|line| !line.is_empty()) {
            self.line(line);
            assert_coherent(&self.table);
        }
    }

    fn line(&mut self, text: &str) {
        writeln!(self.trace, "{text}").unwrap();
        let line = Line::parse(text);
        match line.words[..] {
            ["get", name] => self.get(name),
            ["check", name, token] => self.check(name, token.parse().unwrap(), &line),
            ["session", name] => self.session(name),
            ["restore", epoch] => self.restore(epoch.parse().unwrap()),
            ["replay", ..] => {
                let line = Line { words: line.words[1..].to_vec(), options: line.options };
                let answer = self.request(&line, |table, command| table.replay(command).map(show_answer));
                writeln!(self.trace, "  {}", answer.unwrap_or("new".to_owned())).unwrap();
            }
            _ => self.entry(&line),
        }
    }

    fn restore(&mut self, epoch: u16) {
        match self.table.restored(Epoch(epoch)) {
            Ok(table) => self.table = table,
            Err(error) => writeln!(self.trace, "  {error}").unwrap(),
        }
    }

    fn entry(&mut self, line: &Line<'_>) {
        let mut out = Vec::new();
        let index = self.table.applied().next();
        match line.words[..] {
            ["open", name] => {
                let mut nonce = [0; 16];
                let secret = line.options.get("nonce").copied().unwrap_or(name);
                nonce[..secret.len()].copy_from_slice(secret.as_bytes());
                let ttl_ms = u32::try_from(line.number("ttl")).unwrap();
                let command = Command::OpenSession { client_id: name, ttl_ms, nonce: Nonce(nonce) };
                self.table.apply(index, &command, &mut out);
                if let [Outcome::Opened { session, .. }, ..] = out[..] {
                    self.sessions.insert(name.to_owned(), session);
                }
            }
            ["timeout", name, id] => {
                let (session, acquire_id) = (self.id(name), RequestId(id.parse().unwrap()));
                self.table.apply(index, &Command::CancelWait { session, acquire_id }, &mut out);
            }
            [how @ ("expire" | "close"), ref names @ ..] => {
                let reason = if how == "close" { EndReason::Closed } else { EndReason::Expired };
                let ids: Vec<SessionId> = names.iter().map(|name| self.id(name)).collect();
                let sessions = Rows::Slice(&ids);
                self.table.apply(index, &Command::EndSessions { reason, sessions }, &mut out);
            }
            ["silent", ms, ref names @ ..] => {
                let silence = |name: &&str| Silence { session: self.id(name), ms: ms.parse().unwrap() };
                let silences: Vec<Silence> = names.iter().map(silence).collect();
                let command = Command::SessionsSilent { silences: Rows::Slice(&silences) };
                self.table.apply(index, &command, &mut out);
            }
            ["returned", ref names @ ..] => {
                let ids: Vec<SessionId> = names.iter().map(|name| self.id(name)).collect();
                let command = Command::SessionsReturned { sessions: Rows::Slice(&ids) };
                self.table.apply(index, &command, &mut out);
            }
            ["end-quiet"] => self.table.apply(index, &Command::EndQuiet, &mut out),
            ["reap"] => self.table.apply(index, &Command::Reap, &mut out),
            ["blank"] => self.table.apply(index, &Command::Blank, &mut out),
            _ => {
                out = self.request(line, |table, command| {
                    let mut out = Vec::new();
                    table.apply(index, command, &mut out);
                    out
                })
            }
        }
        for outcome in &out {
            let shown = self.show(outcome);
            writeln!(self.trace, "  {shown}").unwrap();
        }
    }

    fn request<T>(&mut self, line: &Line<'_>, act: impl FnOnce(&mut Table, &Command<'_>) -> T) -> T {
        let [session, verb, id, ref rest @ ..] = line.words[..] else { panic!("{:?}", line.words) };
        let seen = line.seen();
        let mutation = Mutation {
            session: self.id(session),
            request_id: RequestId(id.parse().expect("a request id is a number")),
            seen: Rows::Slice(&seen),
        };
        let acquire_id = RequestId(line.number("of"));
        match (verb, rest) {
            ("acquire", [name, mode, flags @ ..]) => {
                let path = format!("/ls/t/{name}");
                let names = [path.as_str()];
                let acquire = Acquire {
                    mutation,
                    owner: Owner(line.number("owner")),
                    mode: if *mode == "s" { Mode::Shared } else { Mode::Exclusive },
                    is_reentrant: flags.contains(&"re"),
                    permits: u16::try_from(line.number("permits")).unwrap(),
                    wait_ms: u32::try_from(line.number("wait")).unwrap(),
                    lock_delay_ms: u32::try_from(line.number("delay")).unwrap(),
                    max_hold_ms: u32::try_from(line.number("max_hold")).unwrap(),
                    names: Rows::Slice(&names),
                    data: line.options.get("data").copied().unwrap_or_default().as_bytes(),
                };
                act(&mut self.table, &Command::Acquire(acquire))
            }
            ("release", [name]) => {
                let (path, token) = (format!("/ls/t/{name}"), FencingToken(line.number("token")));
                act(&mut self.table, &Command::Release { mutation, acquire_id, name: &path, token })
            }
            ("cancel", []) => act(&mut self.table, &Command::Cancel { mutation, acquire_id }),
            _ => panic!("no such command: {verb}"),
        }
    }

    fn get(&mut self, name: &str) {
        let lock = self.table.lock(&format!("/ls/t/{name}"));
        let mut trace = match (lock.exists(), lock.fence_floor()) {
            (false, floor) => format!("  absent, floor {floor}\n"),
            (true, FencingToken(0)) => String::new(),
            (true, floor) => format!("  vacant, floor {floor}\n"),
        };
        for holder in lock.holders() {
            let mode = lock.mode().expect("a lock with a holder has a mode").name();
            let data = String::from_utf8_lossy(holder.data);
            writeln!(
                trace,
                "  {mode} {}.{} owner {} token {} fence {} {data:?}",
                holder.client_id, holder.acquire_id, holder.owner, holder.token, holder.fence
            )
            .unwrap();
        }
        for waiter in lock.waiters() {
            let (client, id, mode) = (waiter.client_id, waiter.acquire_id, waiter.mode.name());
            writeln!(trace, "  waits {}: {client}.{id} {mode}", waiter.position).unwrap();
        }
        self.trace.push_str(&trace);
    }

    fn check(&mut self, name: &str, token: u64, line: &Line<'_>) {
        let session = line.options.get("session").map(|name| self.id(name));
        let checked = self.table.check(&format!("/ls/t/{name}"), FencingToken(token), session);
        let word = if checked.is_current { "current" } else { "stale" };
        writeln!(self.trace, "  {word}, latest {}, floor {}", checked.latest_token, checked.fence_floor)
            .unwrap();
    }

    fn session(&mut self, name: &str) {
        let mut trace = String::new();
        match self.table.session(self.id(name)) {
            Ok(session) => {
                let silence = match session.silence_ms() {
                    0 => String::new(),
                    ms => format!(" silent for {ms}"),
                };
                let (ttl_ms, next) = (session.ttl_ms(), session.next_request_id());
                writeln!(trace, "  ttl {ttl_ms} next {next}{silence}").unwrap();
                for claim in session.claims() {
                    writeln!(
                        trace,
                        "  {} {} {} {}",
                        claim.acquire_id,
                        claim.name,
                        claim.mode.name(),
                        claim.token
                    )
                    .unwrap();
                }
            }
            Err(answer) => writeln!(trace, "  {}", show_answer(answer)).unwrap(),
        }
        self.trace.push_str(&trace);
    }

    /// A session by the name that the script gave it, or by number.
    fn id(&self, name: &str) -> SessionId {
        match self.sessions.get(name) {
            Some(session) => *session,
            None => SessionId(name.parse().expect("a session is opened first")),
        }
    }

    fn name(&self, id: SessionId) -> String {
        let mut named = self.sessions.iter().filter(|(_, session)| **session == id);
        named.next().map_or_else(|| id.to_string(), |(name, _)| name.clone())
    }

    fn show(&self, outcome: &Outcome) -> String {
        match outcome {
            Outcome::Reply { session, request_id, answer } => {
                format!("{}.{request_id} {}", self.name(*session), show_answer(*answer))
            }
            Outcome::Opened { session, ttl_ms, is_new } => {
                format!("opened {session} ttl {ttl_ms}{}", if *is_new { "" } else { " existing" })
            }
            Outcome::OpenRefused { answer } => format!("refused {}", show_answer(*answer)),
            Outcome::WaitStarted { session, acquire_id, wait_ms } => {
                format!("timer {}.{acquire_id} {wait_ms}", self.name(*session))
            }
            Outcome::WaitEnded { session, acquire_id } => {
                format!("no timer {}.{acquire_id}", self.name(*session))
            }
            Outcome::HoldEnded { session, acquire_id, name, token, reason } => {
                let name = name.trim_start_matches("/ls/t/");
                let reason = reason.name();
                format!("ended {}.{acquire_id} {name} token {token}: {reason}", self.name(*session))
            }
            Outcome::SessionEnded { session, reason, released_total, released } => {
                let names: Vec<&str> =
                    released.iter().map(|name| name.trim_start_matches("/ls/t/")).collect();
                let reason = reason.name();
                format!("gone {}: {reason}, released {released_total} {names:?}", self.name(*session))
            }
            Outcome::ReapNeeded => "reap needed".to_owned(),
        }
    }
}

fn show_answer(answer: Answer) -> String {
    let status = answer.status().name();
    match answer {
        Answer::Granted(grant) => {
            format!("GRANTED token {} fence {} holders {}", grant.token, grant.fence, grant.holders)
        }
        Answer::Queued { position } => format!("{status} {position}"),
        Answer::AlreadyHeld { acquire_id, token } => format!("{status} by {acquire_id} token {token}"),
        Answer::Lost { token, reason } => format!("{status} token {token}: {}", reason.name()),
        Answer::Limit(kind) => format!("{status} {}", LimitKind::name(kind)),
        Answer::Invalid(field) | Answer::Unsupported(field) => format!("{status} {field}"),
        Answer::TimedOut
        | Answer::Cancelled
        | Answer::Done
        | Answer::StaleToken
        | Answer::StaleRequest
        | Answer::SessionExpired
        | Answer::SessionUnknown => status.to_owned(),
    }
}
