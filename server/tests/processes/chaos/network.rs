//! A network whose links can be cut: each node, and each group of clients, in a network namespace of its own, all on one
//! bridge in one more.
//!
//! Invariant: the namespaces have no names; they live as long as this process or a node in them has them open, so nothing of
//! them, their addresses or their links is left when the test ends in whatever way, and nothing outside of them is
//! touched. A cut drops what comes in from one address, silently, as a lost cable would; it works in one direction, two cuts
//! make both. Deliberately absent: delay and loss; those are the simulator's.

use std::fs::File;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, AsRawFd};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// How long a helper program may take.
const HELPER_MAX: Duration = Duration::from_secs(5);

/// A place in the network.
#[derive(Debug)]
struct Site {
    namespace: File,
    address: Ipv4Addr,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Network {
    switch: File,
    sites: Vec<Site>,
}

impl Network {
    /// A network with so many sites, or why there can be none.
    pub(super) fn build(sites: u8) -> Result<Network, String> {
        let switch = namespace()?;
        ip(&switch, "link add br0 type bridge")?;
        ip(&switch, "addr add 10.0.0.100/24 dev br0")?;
        ip(&switch, "link set br0 up")?;
        let sites = (1..=sites).map(|number| Site::build(&switch, number)).collect::<Result<_, _>>()?;
        let network = Network { switch, sites };
        network.probe()?;
        Ok(network)
    }

    /// Where a site is.
    pub(super) fn address(&self, site: usize) -> Ipv4Addr {
        self.sites[site].address
    }

    /// Runs something at a site, with all that it starts.
    pub(super) fn at<T: Send>(&self, site: usize, run: impl FnOnce() -> T + Send) -> T {
        within(&self.sites[site].namespace, run)
    }

    /// Runs something where every site can be reached always.
    pub(super) fn at_the_switch<T: Send>(&self, run: impl FnOnce() -> T + Send) -> T {
        within(&self.switch, run)
    }

    /// Nothing that one site sends reaches the other any more. Not to be done twice.
    pub(super) fn cut(&self, from: usize, to: usize) {
        self.rule("add", from, to).expect("a link that could be cut before can be cut");
    }

    /// It reaches it again.
    pub(super) fn mend(&self, from: usize, to: usize) {
        self.rule("del", from, to).expect("a link that was cut can be mended");
    }

    fn rule(&self, verb: &str, from: usize, to: usize) -> Result<(), String> {
        let source = self.sites[from].address;
        ip(&self.sites[to].namespace, &format!("rule {verb} pref 10 from {source} iif eth0 blackhole"))
    }

    /// A kernel may take a rule and not follow it.
    fn probe(&self) -> Result<(), String> {
        let address = std::net::SocketAddr::from((self.address(1), 7400));
        let listener =
            self.at(1, || std::net::TcpListener::bind(address)).map_err(|error| error.to_string())?;
        let passes = || {
            self.at(0, || std::net::TcpStream::connect_timeout(&address, Duration::from_millis(200)).is_ok())
        };
        if !passes() {
            return Err("a link between two namespaces carries nothing".to_owned());
        }
        self.rule("add", 0, 1)?;
        let passed_a_cut = passes();
        self.rule("del", 0, 1)?;
        drop(listener);
        if passed_a_cut { Err("a rule does not cut a link".to_owned()) } else { Ok(()) }
    }
}

impl Site {
    fn build(switch: &File, number: u8) -> Result<Site, String> {
        let namespace = namespace()?;
        let path = format!("/proc/{}/fd/{}", std::process::id(), namespace.as_raw_fd());
        ip(switch, &format!("link add v{number} type veth peer name p{number}"))?;
        ip(switch, &format!("link set p{number} netns {path}"))?;
        ip(switch, &format!("link set v{number} master br0 up"))?;
        let address = Ipv4Addr::new(10, 0, 0, number);
        ip(&namespace, &format!("link set p{number} name eth0"))?;
        ip(&namespace, &format!("addr add {address}/24 dev eth0"))?;
        ip(&namespace, "link set eth0 up")?;
        ip(&namespace, "link set lo up")?;
        // Rules that cut must come before the one that finds the site's own address.
        ip(&namespace, "rule add pref 100 lookup local")?;
        ip(&namespace, "rule del pref 0 lookup local")?;
        Ok(Site { namespace, address })
    }
}

/// Runs something in a thread of its own that has moved into a namespace.
fn within<T: Send>(namespace: &File, run: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
                .expect("a namespace of ours can be entered");
            run()
        });
        match thread.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

/// A network namespace that nobody else has.
fn namespace() -> Result<File, String> {
    // A child makes it; once it is open here the child is not needed any more.
    let mut command = Command::new("unshare");
    command.args(["--net", "sleep", "60"]).stdin(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| format!("unshare: {error}"))?;
    let opened = open_namespace(&mut child);
    // It may have ended by itself.
    let _ = child.kill();
    let output = child.wait_with_output().map_err(|error| format!("unshare: {error}"))?;
    opened.ok_or_else(|| String::from_utf8_lossy(&output.stderr).trim().to_owned())
}

fn open_namespace(child: &mut Child) -> Option<File> {
    let path = PathBuf::from(format!("/proc/{}/ns/net", child.id()));
    let own = std::fs::read_link("/proc/self/ns/net").ok()?;
    let deadline = Instant::now() + HELPER_MAX;
    while Instant::now() < deadline && child.try_wait().ok()?.is_none() {
        if std::fs::read_link(&path).is_ok_and(|link| link != own) {
            return File::open(&path).ok();
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    None
}

/// Runs `ip` in a namespace, which must be content.
fn ip(namespace: &File, arguments: &str) -> Result<(), String> {
    let output = within(namespace, || {
        Command::new("ip").args(arguments.split_whitespace()).stdin(Stdio::null()).output()
    });
    let output = output.map_err(|error| format!("ip: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("ip {arguments}: {}", String::from_utf8_lossy(&output.stderr).trim()))
}
