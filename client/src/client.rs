//! A client of a cluster: one driver for each cell, and a shared session where the user wants none of his own.
//!
//! Invariant: a name is always asked for at the cell that serves its namespace.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use lockstep_wire::limit::{CLIENT_ID_BYTES_MAX, TTL_MS_MAX, TTL_MS_MIN};
use lockstep_wire::{CellId, FencingToken, Name, Nonce, SessionId};
use tokio::sync::Mutex;

use crate::core::{ClientConfig, LockInfo, Outcome, RouteInfo, StatusInfo, shorten};
use crate::driver::{Command, Handle, Read, start};
use crate::error::Error;
use crate::probe::first_routes;
use crate::session::{Acquire, Checked, Session, odd};

/// How to reach a cluster, and as whom.
#[derive(Clone, Debug)]
pub struct Config {
    /// Members, as `host:port`; one that lives is enough to find the others.
    pub endpoints: Vec<String>,
    /// What people see of this client on the locks that it holds.
    pub client_id: String,
    /// The TTL of the shared sessions: how long the cell waits for a client that is not heard of.
    pub ttl: Duration,
    /// How long a call may go without being carried out, the wait of an acquire aside.
    pub call_timeout: Duration,
    /// How long a session may be in jeopardy before it is given up.
    pub grace: Duration,
    /// The cell whose members are asked for the routing table.
    pub cell: CellId,
}

impl Config {
    /// The first cell of a cluster.
    pub const FIRST_CELL: CellId = CellId(0);

    /// The defaults: a TTL of 10 s, `<host name>/<process id>` as the client's id.
    pub fn new<E: Into<String>>(endpoints: impl IntoIterator<Item = E>) -> Config {
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let mut client_id = format!("{host}/{}", std::process::id());
        shorten(&mut client_id, CLIENT_ID_BYTES_MAX);
        Config {
            endpoints: endpoints.into_iter().map(Into::into).collect(),
            client_id,
            ttl: Duration::from_secs(10),
            call_timeout: Duration::from_secs(10),
            grace: Duration::from_secs(45),
            cell: Config::FIRST_CELL,
        }
    }

    fn check(&self) -> Result<(), Error> {
        let invalid =
            |detail: &str| Err(Error::Invalid { what: "connecting".to_owned(), detail: detail.to_owned() });
        if self.endpoints.is_empty() {
            return invalid("at least one endpoint is needed, host:port");
        }
        if self.client_id.is_empty() || self.client_id.len() > CLIENT_ID_BYTES_MAX {
            return invalid("a client id has 1 to 128 bytes");
        }
        ttl_ms(self.ttl).map(|_| ())
    }
}

/// A client of a cluster. Clones are the same client.
#[derive(Clone, Debug)]
pub struct Client(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    config: Config,
    routes: Arc<[RouteInfo]>,
    cells: BTreeMap<CellId, Handle>,
    sessions: Mutex<BTreeMap<CellId, Session>>,
}

impl Client {
    /// Fetches the routing table from the member that answers first, and starts a thread that keeps sessions alive.
    pub async fn connect(config: Config) -> Result<Client, Error> {
        config.check()?;
        let (answered, routes) = first_routes(&config.endpoints, config.cell, config.call_timeout).await?;
        let mut ids: Vec<CellId> = routes.iter().map(|route| route.cell).collect();
        ids.push(config.cell);
        ids.sort_unstable();
        ids.dedup();
        let mut configs = Vec::new();
        for cell in &ids {
            configs.push(ClientConfig {
                call_timeout_ms: call_timeout_ms(config.call_timeout),
                grace_ms: call_timeout_ms(config.grace),
                first: Some(answered),
                ..ClientConfig::new(*cell, config.endpoints.clone(), &config.client_id, seed()?)
            });
        }
        let routes: Arc<[RouteInfo]> = Arc::from(routes);
        let cells = ids.into_iter().zip(start(configs, &routes)?).collect();
        Ok(Client(Arc::new(Shared { config, routes, cells, sessions: Mutex::default() })))
    }

    /// Asks for a lock in the client's shared session of the name's cell; to be awaited.
    pub fn acquire(&self, name: &str) -> Acquire {
        Acquire::of_client(self.clone(), name)
    }

    /// The client's shared session in the cell that serves a name; a new one when the last has ended.
    pub async fn session(&self, name: &str) -> Result<Session, Error> {
        let (cell, _) = self.cell_of(name)?;
        let mut sessions = self.0.sessions.lock().await;
        if let Some(session) = sessions.get(&cell)
            && !matches!(session.condition(), crate::core::Condition::Ended(_))
        {
            return Ok(session.clone());
        }
        let session = self.open_session(name, self.0.config.ttl).await?;
        sessions.insert(cell, session.clone());
        Ok(session)
    }

    /// Opens a session of its own in the cell that serves a name. 1 s to 60 s; the cell may have narrower bounds and says what
    /// it gave.
    pub async fn open_session(&self, name: &str, ttl: Duration) -> Result<Session, Error> {
        let ttl_ms = ttl_ms(ttl)?;
        let (_, handle) = self.cell_of(name)?;
        let mut nonce = [0; 16];
        fill(&mut nonce)?;
        let nonce = Nonce(nonce);
        handle.ask("opening a session", |answer| Command::Open { ttl_ms, nonce, answer }).await
    }

    /// Who holds a lock, and who waits for it.
    pub async fn get(&self, name: &str) -> Result<LockInfo, Error> {
        let read = Read::Lock { name: name.to_owned() };
        match self.read(name, read, format!("looking at {name}")).await? {
            Outcome::Lock(lock) => Ok(lock),
            other => Err(odd("looking at a lock", &other)),
        }
    }

    /// Whether a token names a live hold.
    pub async fn check(&self, name: &str, token: FencingToken) -> Result<Checked, Error> {
        let read = Read::Check { name: name.to_owned(), token, of: SessionId(0) };
        match self.read(name, read, format!("checking a token of {name}")).await? {
            Outcome::Checked { is_current, latest_token, fence_floor } => {
                Ok(Checked { is_current, latest_token, fence_floor })
            }
            other => Err(odd("checking a token", &other)),
        }
    }

    /// How each cell is, in the eyes of its leader.
    pub async fn status(&self) -> Vec<(CellId, Result<StatusInfo, Error>)> {
        let mut all = Vec::new();
        for (cell, handle) in &self.0.cells {
            let what = format!("asking for the status of cell {cell}");
            let read = Read::Status;
            let asked = handle.ask(&what, |answer| Command::Read { read, answer, what: what.clone() }).await;
            let status = match asked {
                Ok(Outcome::Status(status)) => Ok(status),
                Ok(other) => Err(odd(&what, &other)),
                Err(error) => Err(error),
            };
            all.push((*cell, status));
        }
        all
    }

    /// Which cell serves which namespace.
    pub fn routes(&self) -> &[RouteInfo] {
        &self.0.routes
    }

    /// Which cell serves a name.
    pub fn cell(&self, name: &str) -> Result<CellId, Error> {
        self.cell_of(name).map(|(cell, _)| cell)
    }

    async fn read(&self, name: &str, read: Read, what: String) -> Result<Outcome, Error> {
        let (_, handle) = self.cell_of(name)?;
        handle.ask(&what, |answer| Command::Read { read, answer, what: what.clone() }).await
    }

    fn cell_of(&self, name: &str) -> Result<(CellId, &Handle), Error> {
        let invalid = |detail: String| Error::Invalid { what: format!("{name:?}"), detail };
        let namespace = Name::parse(name).map_err(|error| invalid(error.to_string()))?.namespace();
        let cell = serving(&self.0.routes, namespace).unwrap_or(self.0.config.cell);
        let handle = self.0.cells.get(&cell).ok_or_else(|| invalid(format!("no cell serves {namespace}")))?;
        Ok((cell, handle))
    }
}

/// Which cell serves a namespace: its own row, or the row for every one that has none.
pub(crate) fn serving(routes: &[RouteInfo], namespace: &str) -> Option<CellId> {
    let row = |wanted: &str| routes.iter().find(|route| route.namespace == wanted);
    row(namespace).or_else(|| row("")).map(|route| route.cell)
}

fn ttl_ms(ttl: Duration) -> Result<u32, Error> {
    let ms = u32::try_from(ttl.as_millis()).ok().filter(|ms| (TTL_MS_MIN..=TTL_MS_MAX).contains(ms));
    ms.ok_or_else(|| Error::Invalid {
        what: "opening a session".to_owned(),
        detail: format!("a TTL is between {TTL_MS_MIN} ms and {TTL_MS_MAX} ms, not {ttl:?}"),
    })
}

pub(crate) fn call_timeout_ms(timeout: Duration) -> u64 {
    u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX)
}

fn fill(bytes: &mut [u8]) -> Result<(), Error> {
    getrandom::fill(bytes).map_err(|error| Error::Invalid {
        what: "starting the client".to_owned(),
        detail: format!("the system gave no random bytes ({error})"),
    })
}

pub(crate) fn seed() -> Result<u64, Error> {
    let mut bytes = [0; 8];
    fill(&mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}
