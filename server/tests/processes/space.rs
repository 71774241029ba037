//! A disk that becomes full under load: a small file system of the test's own, in a file, seen by nobody else.
//!
//! Invariant: it is mounted in a mount namespace that ends with the processes in it, and the kernel takes the loop device back
//! then. Where that cannot be had (root, `unshare`, `nsenter`, `mkfs.ext4`, loop devices) the test says why in one line and
//! is over. Deliberately absent: how the log goes about it; its own tests have every step.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use lockstep_wire::reply::Reply;
use lockstep_wire::request::{Acquire, Mode, Mutation, Request, SessionProof};
use lockstep_wire::{CellId, FencingToken, Nonce, Owner, RequestId, Rows, SessionId, Status};

use crate::cluster::{Place, SEGMENT_MIB, config, free_port};
use crate::connection::{Connection, leader, try_leader};
use crate::process::{PROGRAM, Process, format};
use crate::worker::Worker;
use crate::{PATIENCE, directory, until};

const CELL: CellId = CellId(0);
/// Room for the log's first segments, and not for many more.
const DISK_BYTES: u64 = 16 << 20;
/// Of the session that must live although the disk is full.
const TTL: Duration = Duration::from_secs(2);
const NONCE: Nonce = Nonce([0x77; 16]);
const HELD: &str = "/ls/space/held";
/// How soon a full disk is told, and forgotten when there is room: it is looked at once a second.
const SOON: Duration = Duration::from_secs(5);

/// A small disk, as long as its keeper lives.
struct SmallDisk {
    keeper: Process,
    at: PathBuf,
}

impl SmallDisk {
    /// Makes a file system in a file and mounts it, or says why that cannot be done here.
    fn mount(directory: &Path) -> Result<SmallDisk, String> {
        let (image, at) = (directory.join("image"), directory.join("disk"));
        std::fs::create_dir(&at).map_err(|error| error.to_string())?;
        let file = std::fs::File::create(&image).map_err(|error| error.to_string())?;
        file.set_len(DISK_BYTES).map_err(|error| error.to_string())?;
        let made = Command::new("mkfs.ext4").args(["-q", "-O", "^has_journal"]).arg(&image).output();
        let made = made.map_err(|error| format!("mkfs.ext4: {error}"))?;
        if !made.status.success() {
            return Err(String::from_utf8_lossy(&made.stderr).trim().to_owned());
        }
        if let Err(error) = Command::new("unshare").arg("--version").output() {
            return Err(format!("unshare: {error}"));
        }
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", "mount -o loop \"$0\" \"$1\" && echo ready && exec sleep 300"]);
        command.args([&image, &at]);
        let mut keeper = Process::spawn(command);
        let is_ready = until("the disk is mounted or not", PATIENCE, || {
            let is_ready = keeper.said().contains("ready");
            (is_ready || !keeper.is_running()).then_some(is_ready)
        });
        if is_ready { Ok(SmallDisk { keeper, at }) } else { Err(keeper.complained().trim().to_owned()) }
    }

    /// The program, run where the disk is seen.
    fn run(&self, arguments: &[&str]) -> Process {
        let mut command = Command::new("nsenter");
        command.arg(format!("--mount=/proc/{}/ns/mnt", self.keeper.id())).arg(PROGRAM).args(arguments);
        Process::spawn(command)
    }

    /// Formats the data directory of a node on it, and gives the cluster's id.
    fn format(&self, node: u16, data: &Path) -> String {
        let (data, node) = (data.display().to_string(), node.to_string());
        let mut format = self.run(&["format", "--data", &data, "--node", &node, "--segment-mib", "1"]);
        let formatted = format.wait(PATIENCE).expect("it comes to an end");
        assert!(formatted.success(), "{}", format.complained());
        let said = format.said();
        let first = said.lines().next().expect("format says what it did");
        first.rsplit(' ').next().expect("the cluster's id comes last").to_owned()
    }

    /// Starts a node whose directory is on it.
    fn serve(&self, place: &Place) -> Process {
        self.run(&["serve", "--config", &place.config.display().to_string()])
    }

    /// A file on the disk, as it is seen from outside.
    fn file(&self, name: &str) -> PathBuf {
        let root = PathBuf::from(format!("/proc/{}/root", self.keeper.id()));
        root.join(self.at.strip_prefix("/").expect("an absolute path")).join(name)
    }

    /// Takes all the room that is left.
    fn fill(&self) {
        use std::io::Write as _;
        let mut file = std::fs::File::create(self.file("fill")).expect("a file can be made");
        let mut piece = 1 << 20;
        while piece > 0 {
            if file.write_all(&vec![1; piece]).is_err() {
                piece /= 2;
            }
        }
    }

    fn free(&self) {
        std::fs::remove_file(self.file("fill")).expect("a file can be removed");
    }
}

fn place(id: u16, data: PathBuf, directory: &Path) -> Place {
    let config = directory.join(format!("node-{id}.toml"));
    Place { id, data, config, client: free_port(), peer: free_port() }
}

/// A session with one lock, which are to outlive the full disk.
struct Holder {
    session: SessionId,
    token: FencingToken,
}

impl Holder {
    fn new(connection: &mut Connection) -> Holder {
        let ttl_ms = u32::try_from(TTL.as_millis()).expect("a short TTL");
        let opened = connection.call(&Request::OpenSession { client_id: "holder", ttl_ms, nonce: NONCE });
        let opened = opened.expect("the cell answers");
        let Reply::Opened { session, .. } = opened.reply() else { panic!("{:?}", opened.reply()) };
        let granted = Holder::acquire(connection, session, 1, HELD);
        let Reply::Granted(grant) = granted.reply() else { panic!("{:?}", granted.reply()) };
        Holder { session, token: grant.token }
    }

    fn acquire(
        connection: &mut Connection,
        session: SessionId,
        id: u64,
        name: &str,
    ) -> crate::connection::Answer {
        let acquire = Acquire {
            mutation: Holder::mutation(session, id),
            owner: Owner(id),
            mode: Mode::Exclusive,
            is_reentrant: false,
            permits: 0,
            wait_ms: 0,
            lock_delay_ms: 0,
            max_hold_ms: 0,
            names: Rows::Slice(&[name]),
            data: b"",
        };
        connection.call(&Request::Acquire(acquire)).expect("the cell answers")
    }

    fn mutation(session: SessionId, id: u64) -> Mutation<'static> {
        Mutation { session, request_id: RequestId(id), seen: Rows::Slice(&[]) }
    }

    fn beat(&self, connection: &mut Connection) {
        let answer = connection.call(&Request::KeepAlive(Rows::Slice(&[self.session])));
        let answer = answer.expect("a beat is answered");
        let Reply::KeptAlive(rows) = answer.reply() else { panic!("{:?}", answer.reply()) };
        let told: Vec<Status> = rows.iter().map(|row| row.status).collect();
        assert_eq!(told, [Status::Ok], "the session lives");
    }

    /// The lock is still held, and is given back.
    fn give_back(&self, connection: &mut Connection) {
        let proofs = [SessionProof { session: self.session, nonce: NONCE }];
        let attached = connection.call(&Request::AttachSessions(Rows::Slice(&proofs))).expect("an answer");
        let Reply::Attached(rows) = attached.reply() else { panic!("{:?}", attached.reply()) };
        assert!(rows.iter().all(|row| row.status == Status::Ok));
        let (name, token) = (HELD, self.token);
        let mutation = Holder::mutation(self.session, 3);
        let released = connection.call(&Request::Release { mutation, acquire_id: RequestId(1), name, token });
        assert_eq!(released.expect("a release is answered").reply(), Reply::Done);
    }
}

/// What a refusal says.
fn refusal(answer: &crate::connection::Answer) -> Option<Status> {
    match answer.reply() {
        Reply::Refused(refusal) => Some(refusal.status),
        _ => None,
    }
}

/// Whether a node says that its disk is full; none when it does not answer.
fn is_short_of_space(place: &Place) -> Option<bool> {
    let answer = Connection::open(place.client, CELL).ok()?.call(&Request::Status).ok()?;
    match answer.reply() {
        Reply::Status(status) => Some(status.is_short_of_space),
        _ => None,
    }
}

/// Runs a command of the program for clients: exit code, stdout, stderr.
fn command(
    place: &Place,
    arguments: &[&str],
    rest: &[&str],
    mut meanwhile: impl FnMut(),
) -> (Option<i32>, String, String) {
    let mut all = arguments.to_vec();
    let endpoint = place.client.to_string();
    all.extend(["--endpoints", &endpoint]);
    all.extend(rest);
    let mut process = Process::start(all);
    let status = until("the command ends", PATIENCE, || {
        meanwhile();
        process.wait(TTL / 10)
    });
    (status.code(), process.said(), process.complained())
}

#[test]
fn a_full_disk_refuses_what_is_new_keeps_what_is_there_and_needs_no_repair() {
    let directory = directory();
    let path = directory.path().canonicalize().expect("it is there");
    let disk = match SmallDisk::mount(&path) {
        Ok(disk) => disk,
        Err(reason) => return println!("SKIPPED: no small disk can be had here ({reason})"),
    };
    let place = place(1, disk.at.join("data"), &path);
    disk.format(1, &place.data);
    std::fs::write(&place.config, config(&place, std::slice::from_ref(&place), ""))
        .expect("a file is written");
    let mut node = disk.serve(&place);
    let mut worker = Worker::new(CELL, "/ls/space/worker");
    let mut connection = leader(&[place.client], CELL, PATIENCE);
    worker.begin(&mut connection).expect("the cell opens a session");
    let holder = Holder::new(&mut connection);

    disk.fill();
    let mut rounds = 0;
    let refused = loop {
        match worker.one(&mut connection) {
            Ok(()) => rounds += 1,
            Err(error) => break error.to_string(),
        }
        holder.beat(&mut connection);
        assert!(rounds < 4_000, "reserves have an end");
    };
    println!("{rounds} rounds until the disk was full");
    assert_eq!(refused, "NO_SPACE");
    assert_eq!(is_short_of_space(&place), Some(true));

    // What is new is refused at once; the session lives on for several TTLs, and reads are answered.
    let began = Instant::now();
    while began.elapsed() < 3 * TTL {
        let asked = Instant::now();
        let answer = Holder::acquire(&mut connection, holder.session, 2, "/ls/space/new");
        assert_eq!(refusal(&answer), Some(Status::NoSpace));
        let nonce = Nonce([0x78; 16]);
        let opening = Request::OpenSession { client_id: "newcomer", ttl_ms: 5_000, nonce };
        assert_eq!(refusal(&connection.call(&opening).expect("an answer")), Some(Status::NoSpace));
        assert!(asked.elapsed() < Duration::from_secs(1), "nobody waits for it: {:?}", asked.elapsed());
        holder.beat(&mut connection);
        let looked = connection.call(&Request::GetLock { name: HELD }).expect("a read is answered");
        let Reply::Lock(lock) = looked.reply() else { panic!("{:?}", looked.reply()) };
        let holders: Vec<_> = lock.holders.iter().map(|holder| (holder.session, holder.token)).collect();
        assert_eq!(holders, [(holder.session, holder.token)]);
        std::thread::sleep(TTL / 4);
    }
    let (code, _, complained) =
        command(&place, &["lock", "/ls/space/new"], &["--", "true"], || holder.beat(&mut connection));
    assert_eq!(code, Some(74), "{complained}");
    assert!(complained.contains("the disks of this cell are full"), "{complained}");
    let (code, said, _) = command(&place, &["status"], &[], || holder.beat(&mut connection));
    assert!(code == Some(0) && said.contains("its disk is full"), "{said}");

    // A start needs no room; the lock that was held since before the disk was full can be given back.
    node.kill();
    let mut node = disk.serve(&place);
    let mut connection = leader(&[place.client], CELL, PATIENCE);
    holder.give_back(&mut connection);
    until("a node that was started with a full disk knows it", SOON, || {
        is_short_of_space(&place).filter(|is_short| *is_short)
    });
    let (code, _, complained) =
        command(&place, &["lock", "/ls/space/new"], &["--", "true"], || holder.beat(&mut connection));
    assert_eq!(code, Some(74), "{complained}");
    assert!(node.is_running(), "{}", node.complained());

    disk.free();
    until("the cell takes something new", SOON, || {
        let answer = Holder::acquire(&mut connection, holder.session, 4, HELD);
        matches!(answer.reply(), Reply::Granted(_)).then_some(())
    });
    worker.verify(&mut connection);
    for _ in 0..100 {
        worker.one(&mut connection).expect("the cell grants");
    }
    assert_eq!(is_short_of_space(&place), Some(false));
    assert!(node.is_running(), "{}", node.complained());
}

#[test]
fn one_full_disk_of_three_stops_nobody() {
    let directory = directory();
    let path = directory.path().canonicalize().expect("it is there");
    let disk = match SmallDisk::mount(&path) {
        Ok(disk) => disk,
        Err(reason) => return println!("SKIPPED: no small disk can be had here ({reason})"),
    };
    let mut places = vec![place(1, disk.at.join("data"), &path)];
    let cluster = disk.format(1, &places[0].data);
    for id in [2, 3] {
        let place = place(id, path.join(format!("data-{id}")), &path);
        format(&place.data, id, Some(&cluster), 1, SEGMENT_MIB);
        places.push(place);
    }
    for place in &places {
        std::fs::write(&place.config, config(place, &places, "")).expect("a file is written");
    }
    let full = disk.serve(&places[0]);
    let started: Vec<Process> = places[1..]
        .iter()
        .map(|place| Process::start(["serve", "--config", &place.config.display().to_string()]))
        .collect();
    let endpoints: Vec<_> = places.iter().map(|place| place.client).collect();
    let mut worker = Worker::new(CELL, "/ls/space/three");
    let mut connection = leader(&endpoints, CELL, PATIENCE);
    worker.begin(&mut connection).expect("the cell opens a session");

    disk.fill();
    // If it leads it leaves, and somebody whose disk has room takes over.
    let mut is_settled = true;
    let mut work = |patience_ms: u64, what: &str, is_done: &mut dyn FnMut(u64) -> bool| {
        let mut rounds = 0;
        until(what, Duration::from_millis(patience_ms), || {
            if !is_settled {
                connection = endpoints.iter().find_map(|at| try_leader(*at, CELL).ok().flatten())?;
                is_settled = worker.begin(&mut connection).is_ok();
            }
            for _ in 0..20 {
                is_settled = is_settled && worker.one(&mut connection).is_ok();
                rounds += u64::from(is_settled);
            }
            is_done(rounds).then_some(())
        });
    };
    work(20_000, "the disk is full", &mut |_| is_short_of_space(&places[0]) == Some(true));
    // More than what the full one has in reserve.
    work(20_000, "the cell goes on", &mut |rounds| rounds >= 1_000);
    assert_eq!(is_short_of_space(&places[0]), Some(true));
    let leads = |place: &Place| {
        let answer = Connection::open(place.client, CELL).ok()?.call(&Request::Status).ok()?;
        let Reply::Status(status) = answer.reply() else { return None };
        Some((status.role == "leader", status.applied))
    };
    assert_eq!(leads(&places[0]).map(|(is_leader, _)| is_leader), Some(false), "{}", full.complained());

    disk.free();
    until("it catches up when there is room", PATIENCE, || {
        let others = places[1..].iter().filter_map(leads).map(|(_, applied)| applied).max()?;
        leads(&places[0]).filter(|(_, applied)| *applied >= others)
    });
    until("it says so", SOON, || is_short_of_space(&places[0]).filter(|is_short| !is_short));
    drop(started);
}
