//! A disk that becomes full under load: a small file system of the test's own, in a file, seen by nobody else.
//!
//! Invariant: it is mounted in a mount namespace that ends with the processes in it, and the kernel takes the loop device back
//! then. Where that cannot be had (root, `unshare`, `nsenter`, `mkfs.ext4`, loop devices) the test says why in one line and
//! is over. Deliberately absent: how the log goes about it; its own tests have every step.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use lockstep_wire::CellId;
use lockstep_wire::reply::Reply;
use lockstep_wire::request::Request;

use crate::cluster::{Place, config, free_port};
use crate::connection::{Connection, leader};
use crate::process::{PROGRAM, Process};
use crate::worker::Worker;
use crate::{PATIENCE, directory, until};

const CELL: CellId = CellId(0);
/// Room for the log's first segments, and not for many more.
const DISK_BYTES: u64 = 16 << 20;

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

#[test]
fn a_node_whose_disk_was_full_goes_on_by_itself_with_all_that_it_acknowledged() {
    let directory = directory();
    let path = directory.path().canonicalize().expect("it is there");
    let disk = match SmallDisk::mount(&path) {
        Ok(disk) => disk,
        Err(reason) => return println!("SKIPPED: no small disk can be had here ({reason})"),
    };
    let place = Place {
        id: 1,
        data: disk.at.join("data"),
        config: path.join("node.toml"),
        client: free_port(),
        peer: free_port(),
    };
    let data = place.data.display().to_string();
    let mut format = disk.run(&["format", "--data", &data, "--node", "1", "--segment-mib", "1"]);
    let formatted = format.wait(PATIENCE).expect("it comes to an end");
    assert!(formatted.success(), "{}", format.complained());
    std::fs::write(&place.config, config(&place, std::slice::from_ref(&place), ""))
        .expect("a file is written");
    let config = place.config.display().to_string();
    let mut node = disk.run(&["serve", "--config", &config]);
    let mut worker = Worker::new(CELL, "/ls/space/worker");
    let mut connection = leader(&[place.client], CELL, PATIENCE);
    worker.begin(&mut connection).expect("the cell opens a session");

    disk.fill();
    // Every write takes at least a block of what the log has in reserve.
    let written = (0..4_000).take_while(|_| worker.one(&mut connection).is_ok()).count();
    println!("{written} rounds until the disk was full");
    assert!((100..4_000).contains(&written), "the log has reserves, and they have an end");
    assert!(node.is_running(), "{}", node.complained());
    let status = |connection: &mut Connection| {
        let answer = connection.call(&Request::Status).ok()?;
        matches!(answer.reply(), Reply::Status(_)).then_some(())
    };
    until("it answers while its disk is full", PATIENCE, || {
        status(&mut Connection::open(place.client, CELL).ok()?)
    });

    // A start needs no room.
    node.kill();
    let mut node = disk.run(&["serve", "--config", &config]);
    until("it starts while its disk is full", PATIENCE, || {
        status(&mut Connection::open(place.client, CELL).ok()?)
    });
    std::thread::sleep(Duration::from_millis(500));
    assert!(node.is_running(), "{}", node.complained());

    disk.free();
    let mut connection = leader(&[place.client], CELL, PATIENCE);
    worker.verify(&mut connection);
    for _ in 0..100 {
        worker.one(&mut connection).expect("the cell grants");
    }
    assert!(node.is_running(), "{}", node.complained());
}
