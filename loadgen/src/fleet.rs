//! The executors of a run, and the watch over them.
//!
//! Invariant: a run ends by itself. Opening lasts [`OPEN_MS_MAX`] at most, the load as long as was asked for, closing
//! `CLOSE_MS_MAX` of the driver at most; an executor that fails ends the run. Deliberately absent: what the clients do.

use std::cell::RefCell;
use std::ops::{ControlFlow, Range};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use clap::builder::NonEmptyStringValueParser;
use glommio::{LocalExecutorPoolBuilder, PoolPlacement, PoolThreadHandles};
use lockstep_client::core::{ClientConfig, SESSIONS_MAX, Time};
use lockstep_wire::CellId;
use lockstep_wire::limit::{TTL_MS_MAX, TTL_MS_MIN};

use crate::chance::Chance;
use crate::clock;
use crate::driver::Driver;
use crate::host;
use crate::output::progress;
use crate::profile::Crowd;
use crate::tally::{Pulse, Tally};

/// How long opening the sessions may take before the load is measured with those that are open, in ms. Longer than a
/// single open is tried, so that a cluster that does not answer has given its reason by then.
pub const OPEN_MS_MAX: u64 = 12_000;
/// How often the watch looks, in ms.
const LOOK_MS: u64 = 5;
/// What people see of the clients.
const CLIENT_ID: &str = "loadgen";
/// Sessions on one connection.
const SESSIONS_PER_CONNECTION_MAX: u16 = 4_096;
const _: () = assert!((u16::MAX as usize) < SESSIONS_MAX, "a core takes as many");

/// Whom to load, and with how many.
#[derive(Clone, Debug, clap::Args)]
#[group(skip)]
pub struct Options {
    /// The members of the cluster, as host:port.
    #[arg(long, env = "LOCKSTEP_ENDPOINTS", required = true, value_delimiter = ',', value_parser = NonEmptyStringValueParser::new())]
    pub endpoints: Vec<String>,
    /// Simulated clients, each with a session of its own.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub clients: u32,
    /// How many clients share a connection.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=i64::from(SESSIONS_PER_CONNECTION_MAX)))]
    pub sessions_per_connection: u32,
    /// How long the load is measured, in seconds.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub seconds: u32,
    /// Executors, each a thread of its own.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub cores: u32,
    /// The TTL of the sessions, in ms.
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(i64::from(TTL_MS_MIN)..=i64::from(TTL_MS_MAX)))]
    pub ttl_ms: u32,
}

impl Options {
    /// How many connections the clients need.
    pub fn connections(&self) -> u32 {
        self.clients.div_ceil(self.sessions_per_connection)
    }

    /// Who shares a connection.
    fn clients_of(&self, connection: u32) -> Range<u32> {
        let start = connection * self.sessions_per_connection;
        start..self.clients.min(start + self.sessions_per_connection)
    }
}

/// What a run came to.
#[derive(Debug)]
pub(crate) struct Sum {
    pub(crate) tally: Tally,
    pub(crate) gap_ms_max: u64,
    /// How long was measured; nothing when no session was opened.
    pub(crate) measured_s: u32,
    /// Sessions that were open when measuring began.
    pub(crate) sessions: u64,
    pub(crate) opens_failed: u64,
}

/// A run that is ready to start.
#[derive(Debug)]
pub(crate) struct Fleet {
    options: Options,
    /// Different for each run.
    pub(crate) seed: u64,
}

impl Fleet {
    /// Checks that the options fit each other and the machine.
    pub(crate) fn new(options: &Options) -> anyhow::Result<Fleet> {
        let connections = options.connections();
        ensure!(
            options.cores <= connections,
            "{} clients, {} to a connection, make {connections} connections, too few for {} cores: take fewer cores, or fewer \
             sessions per connection",
            options.clients,
            options.sessions_per_connection,
            options.cores
        );
        host::prepare(u64::from(options.cores), u64::from(connections))?;
        let seed = getrandom::u64().context("asking the system for a random number")?;
        Ok(Fleet { options: options.clone(), seed })
    }

    /// Runs the clients that `make` makes for each connection, to the end.
    pub(crate) fn run<C, M>(self, make: M) -> anyhow::Result<Sum>
    where
        C: Crowd + 'static,
        M: Fn(Range<u32>, Rc<RefCell<Tally>>, Arc<Pulse>) -> C + Clone + Send + 'static,
    {
        let mut progress = Progress { pairs: 0, errors: 0 };
        self.run_watched(make, |second, pulse, at| {
            progress.print(second, pulse, at);
            ControlFlow::Continue(())
        })
    }

    /// Likewise; `on_second` is called after each measured second, and may end the load.
    pub(crate) fn run_watched<C, M>(
        self,
        make: M,
        mut on_second: impl FnMut(u32, &Pulse, Time) -> ControlFlow<()>,
    ) -> anyhow::Result<Sum>
    where
        C: Crowd + 'static,
        M: Fn(Range<u32>, Rc<RefCell<Tally>>, Arc<Pulse>) -> C + Clone + Send + 'static,
    {
        let pulse = Arc::new(Pulse::new());
        let handles = self.start(make, &pulse)?;
        let (sessions, measured_s) = self.watch(&pulse, &handles, &mut on_second);
        let gap_ms_max = if measured_s == 0 { 0 } else { pulse.gap_ms_max(pulse.end().min(clock::now())) };
        pulse.stop();
        let mut tally = Tally::new();
        for part in handles.join_all() {
            match part {
                Ok(part) => tally.add(&part),
                Err(error) => bail!("an executor has failed: {error}"),
            }
        }
        let opens_failed = pulse.opens_failed.load(Ordering::Relaxed);
        Ok(Sum { tally, gap_ms_max, measured_s, sessions, opens_failed })
    }

    fn start<C, M>(&self, make: M, pulse: &Arc<Pulse>) -> anyhow::Result<PoolThreadHandles<Tally>>
    where
        C: Crowd + 'static,
        M: Fn(Range<u32>, Rc<RefCell<Tally>>, Arc<Pulse>) -> C + Clone + Send + 'static,
    {
        let (options, seed, pulse) = (self.options.clone(), self.seed, Arc::clone(pulse));
        let numbers = Arc::new(AtomicU32::new(0));
        let cores = usize::try_from(options.cores).context("the number of cores")?;
        let pool = LocalExecutorPoolBuilder::new(PoolPlacement::Unbound(cores)).name("loadgen");
        let pool = pool.io_memory(host::IO_MEMORY_BYTES).ring_depth(host::RING_DEPTH);
        let started = pool.on_all_shards(move || async move {
            let number = numbers.fetch_add(1, Ordering::Relaxed);
            run_executor(number, &options, seed, make, &pulse).await
        });
        started.map_err(|error| anyhow::anyhow!("the executors cannot be started: {error}"))
    }

    /// Begins to measure when all sessions are open or the time for that is over, and comes back at the end, or when
    /// `on_second` says so or an executor has failed. Says how many sessions there were at the begin and how long was measured.
    fn watch(
        &self,
        pulse: &Pulse,
        handles: &PoolThreadHandles<Tally>,
        on_second: &mut dyn FnMut(u32, &Pulse, Time) -> ControlFlow<()>,
    ) -> (u64, u32) {
        let clients = u64::from(self.options.clients);
        let is_failed = || handles.handles().iter().any(thread::JoinHandle::is_finished);
        let opened = || pulse.sessions.load(Ordering::Relaxed);
        let start = clock::now();
        let (open_until, mut second) = (start.plus_ms(OPEN_MS_MAX), 1);
        while opened() < clients && clock::now() < open_until && !is_failed() {
            if clock::now() >= start.plus_ms(second * 1_000) {
                progress(&format!("{second:>4} s: {} of {clients} sessions are open", opened()));
                second += 1;
            }
            thread::sleep(Duration::from_millis(LOOK_MS));
        }
        let sessions = opened();
        if sessions == 0 || is_failed() {
            return (sessions, 0);
        }
        let begin = clock::now();
        pulse.begin(begin, begin.plus_ms(u64::from(self.options.seconds) * 1_000));
        for second in 1..=self.options.seconds {
            let at = begin.plus_ms(u64::from(second) * 1_000);
            while clock::now() < at && !is_failed() {
                thread::sleep(Duration::from_millis(LOOK_MS));
            }
            let is_ended = on_second(second, pulse, at).is_break();
            if (is_ended || is_failed()) && second < self.options.seconds {
                return (sessions, second);
            }
        }
        (sessions, self.options.seconds)
    }
}

/// One line each second.
struct Progress {
    pairs: u64,
    errors: u64,
}

impl Progress {
    fn print(&mut self, second: u32, pulse: &Pulse, at: Time) {
        let (pairs, errors) = (pulse.pairs.load(Ordering::Relaxed), pulse.errors.load(Ordering::Relaxed));
        progress(&format!(
            "{second:>4} s: {} pairs, {} errors, {} sessions, longest gap so far {} ms",
            pairs - self.pairs,
            errors - self.errors,
            pulse.sessions.load(Ordering::Relaxed),
            pulse.gap_ms_max(at)
        ));
        (self.pairs, self.errors) = (pairs, errors);
    }
}

/// One executor: every connection whose number falls to it.
async fn run_executor<C, M>(number: u32, options: &Options, seed: u64, make: M, pulse: &Arc<Pulse>) -> Tally
where
    C: Crowd + 'static,
    M: Fn(Range<u32>, Rc<RefCell<Tally>>, Arc<Pulse>) -> C,
{
    let tally = Rc::new(RefCell::new(Tally::new()));
    let step = usize::try_from(options.cores).expect("there are few cores");
    let mut tasks = Vec::new();
    for connection in (number..options.connections()).step_by(step) {
        let crowd = make(options.clients_of(connection), Rc::clone(&tally), Arc::clone(pulse));
        let seed = Chance::new(seed ^ u64::from(connection)).next();
        let config = ClientConfig::new(CellId(0), options.endpoints.clone(), CLIENT_ID, seed);
        tasks.push(glommio::spawn_local(Driver::new(config, crowd, Arc::clone(pulse)).run()));
    }
    for task in tasks {
        task.await;
    }
    tally.replace(Tally::new())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(clients: u32, sessions_per_connection: u32) -> Options {
        Options {
            endpoints: vec!["127.0.0.1:1".to_owned()],
            clients,
            sessions_per_connection,
            seconds: 1,
            cores: 1,
            ttl_ms: 10_000,
        }
    }

    #[test]
    fn every_client_is_on_exactly_one_connection() {
        for (clients, sessions_per_connection) in [(1, 1), (1, 16), (64, 16), (65, 16), (1_000_000, 4_096)] {
            let options = options(clients, sessions_per_connection);
            let mut next = 0;
            for connection in 0..options.connections() {
                let range = options.clients_of(connection);
                assert_eq!(range.start, next);
                assert!(!range.is_empty() && range.len() <= sessions_per_connection as usize);
                next = range.end;
            }
            assert_eq!(next, clients);
        }
    }

    #[test]
    fn more_cores_than_connections_are_refused_in_words() {
        let mut options = options(16, 16);
        options.cores = 2;
        let refusal = Fleet::new(&options).expect_err("one connection cannot be on two cores").to_string();
        assert!(refusal.contains("too few for 2 cores"), "{refusal}");
    }
}
