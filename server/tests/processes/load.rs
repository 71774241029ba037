//! Clients as users have them, busy all the time: the client library, many sessions, and books about every success.
//!
//! Invariant: a lock that several contend for is granted with ever greater tokens, and a hold that was granted is held
//! until it is given back; both are checked at every grant.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use lockstep_client::{Client, Config, Guard, Session};
use lockstep_wire::{CellId, FencingToken};
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

use crate::{PATIENCE, until};

/// Holds that each task keeps to the end.
const KEPT_MAX: usize = 12;
/// Tasks, each with a session of its own.
const TASKS: usize = 8;

/// A configuration of the client library for these endpoints.
pub(crate) fn client_config(endpoints: &[SocketAddr]) -> Config {
    Config {
        cell: CellId(0),
        ttl: Duration::from_secs(10),
        ..Config::new(endpoints.iter().map(SocketAddr::to_string))
    }
}

/// The load, while it runs.
#[derive(Debug)]
pub(crate) struct Load {
    runtime: Runtime,
    client: Client,
    tasks: Vec<JoinHandle<()>>,
    books: Arc<Books>,
}

#[derive(Debug, Default)]
struct Books {
    stop: AtomicBool,
    successes: Mutex<Vec<Instant>>,
    failures: Mutex<Vec<String>>,
    kept: Mutex<Vec<(Guard, FencingToken)>>,
    /// The greatest token of each contended name.
    tokens: Mutex<BTreeMap<String, FencingToken>>,
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Load {
    /// Starts the load; `namespace` decides which cell has it.
    pub(crate) fn start(endpoints: &[SocketAddr], namespace: &str) -> Load {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime can be made");
        let client = runtime.block_on(Client::connect(client_config(endpoints))).expect("a client connects");
        let books = Arc::new(Books::default());
        let tasks = (0..TASKS)
            .map(|number| {
                let (client, books) = (client.clone(), Arc::clone(&books));
                let namespace = namespace.to_owned();
                runtime.spawn(async move { work(&client, &books, &namespace, number).await })
            })
            .collect();
        Load { runtime, client, tasks, books }
    }

    /// How often something has succeeded.
    pub(crate) fn successes(&self) -> usize {
        lock(&self.books.successes).len()
    }

    /// Waits for so many successes more.
    #[track_caller]
    pub(crate) fn await_successes(&self, count: usize) {
        let wanted = self.successes() + count;
        until("the load makes progress", PATIENCE, || (self.successes() >= wanted).then_some(()));
    }

    /// The longest time without a success between two moments.
    pub(crate) fn longest_gap(&self, from: Instant, to: Instant) -> Duration {
        let mut moments: Vec<Instant> = lock(&self.books.successes).clone();
        moments.retain(|at| (from..to).contains(at));
        moments.extend([from, to]);
        moments.sort_unstable();
        moments.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or_default()
    }

    /// What has failed so far.
    pub(crate) fn failures(&self) -> Vec<String> {
        lock(&self.books.failures).clone()
    }

    /// Holds every lock that was kept against what the cell says; gives how many there are.
    #[track_caller]
    pub(crate) fn verify_kept(&self) -> usize {
        let kept = lock(&self.books.kept);
        for (guard, token) in kept.iter() {
            assert!(guard.is_held(), "the client has lost {}", guard.name());
            let checked = self.runtime.block_on(self.client.check(guard.name(), *token));
            let checked = checked.expect("the cell answers");
            assert!(checked.is_current, "{} with token {token} is lost: {checked:?}", guard.name());
        }
        kept.len()
    }

    /// Ends the load; nothing must have failed.
    #[track_caller]
    pub(crate) fn finish(self) {
        self.books.stop.store(true, Ordering::Relaxed);
        for task in self.tasks {
            self.runtime.block_on(task).expect("a task does not panic");
        }
        self.runtime.block_on(async {
            let kept = std::mem::take(&mut *lock(&self.books.kept));
            for (guard, _) in kept {
                guard.release().await.expect("what was kept can be given back");
            }
        });
        assert_eq!(lock(&self.books.failures).as_slice(), [] as [String; 0], "calls have failed");
    }
}

async fn work(client: &Client, books: &Books, namespace: &str, number: usize) {
    let anything = format!("/ls/{namespace}/anything");
    let session = match client.open_session(&anything, Duration::from_secs(10)).await {
        Ok(session) => session,
        Err(error) => return lock(&books.failures).push(format!("opening: {error}")),
    };
    let (mut turn, mut kept) = (0, 0);
    while !books.stop.load(Ordering::Relaxed) {
        turn += 1;
        let name = match turn % 4 {
            0 => format!("/ls/{namespace}/contended"),
            _ => format!("/ls/{namespace}/task-{number}"),
        };
        if let Err(error) = hold_once(&session, books, &name).await {
            lock(&books.failures).push(error);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        if turn % 16 == 0 && kept < KEPT_MAX {
            kept += 1;
            match session.acquire(&format!("/ls/{namespace}/kept-{number}-{kept}")).await {
                Ok(guard) => {
                    let token = guard.token().unwrap_or_default();
                    lock(&books.kept).push((guard, token));
                }
                Err(error) => lock(&books.failures).push(format!("keeping: {error}")),
            }
        }
    }
}

async fn hold_once(session: &Session, books: &Books, name: &str) -> Result<(), String> {
    let guard = session.acquire(name).await.map_err(|error| format!("acquiring: {error}"))?;
    lock(&books.successes).push(Instant::now());
    let token = guard.token().ok_or_else(|| format!("{name} was granted and is not held"))?;
    let former = lock(&books.tokens).insert(name.to_owned(), token);
    if former.is_some_and(|former| former >= token) {
        return Err(format!("{name} was granted with token {token} after {former:?}"));
    }
    guard.release().await.map_err(|error| format!("releasing: {error}"))?;
    lock(&books.successes).push(Instant::now());
    Ok(())
}
