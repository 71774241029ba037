//! What a snapshot costs a node under load: windows of one run, with a snapshot being written and without, take turns.
//!
//! A window with a snapshot lasts from when its file appears until it is whole; the next one without lasts as long. What
//! follows a snapshot for a moment, when its copies and the file of an older one go, is neither and shown by itself. Invariants:
//! a write belongs to the window in which it was due, and to one only; whatever is waited for has a bound. Deliberately
//! absent: how the load is driven, and what is printed.

use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure};
use hdrhistogram::Histogram;

use crate::pace::{Course, Sample};
use crate::process::Process;
use crate::question::Saving;

/// Between two looks for the file of a snapshot.
const LOOK: Duration = Duration::from_millis(1);
/// How long a snapshot that was asked for may take to begin, and to be written.
const BEGIN_MAX: Duration = Duration::from_secs(20);
const WRITE_MAX: Duration = Duration::from_secs(60);
/// A snapshot that begins so soon after another one belongs to it, and how many may do so.
const AT_ONCE: Duration = Duration::from_millis(100);
const AT_ONCE_MAX: usize = 4;
/// What follows a snapshot.
const AFTER: Duration = Duration::from_millis(500);
/// A window without a snapshot is as long as the snapshot before it, within these bounds.
const WITHOUT_MIN: Duration = Duration::from_millis(200);
const WITHOUT_MAX: Duration = Duration::from_secs(15);
/// The longest latency that is told apart, in ns.
const LATENCY_NS_MAX: u64 = 60_000_000_000;

/// What a node does in a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It writes no snapshot.
    Without,
    /// It writes one.
    Meanwhile,
    /// It has just written one.
    After,
}

/// A span of the run.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    /// What the node did.
    pub kind: Kind,
    /// Its first moment, and the first behind it.
    pub from: Instant,
    /// See [`Window::from`].
    pub until: Instant,
    /// How long the node had a processor in it.
    pub worked: Duration,
}

impl Window {
    /// Its beginning; how long the node had a processor in that is not known.
    fn first(&self, span: Duration) -> Window {
        Window { until: self.from + span, worked: Duration::ZERO, ..*self }
    }

    /// Likewise its end.
    fn last(&self, span: Duration) -> Window {
        Window { from: self.until - span, worked: Duration::ZERO, ..*self }
    }
}

/// Who makes a node take snapshots and notices when it does.
pub struct Watch<'a> {
    /// The node.
    pub process: &'a Process,
    /// The file that is there while a snapshot is being written.
    pub staging: PathBuf,
    /// Has a snapshot taken.
    pub ask: &'a dyn Fn() -> anyhow::Result<Saving>,
    /// Whether there is load.
    pub is_loaded: &'a dyn Fn() -> bool,
}

impl Watch<'_> {
    /// Waits until the load has its pace, in writes a second.
    ///
    /// # Errors
    /// When it has none in time.
    pub fn wait_for_pace(&self, course: &Course, patience: Duration) -> anyhow::Result<f64> {
        self.wait("the load has no pace", Instant::now() + patience, &|_| course.pace().is_some())?;
        Ok(course.pace().expect("it was there"))
    }

    /// Windows that take turns: so many of each kind, or as many as fit before the deadline.
    ///
    /// # Errors
    /// When a snapshot does not begin or end in time, or the load has ended.
    pub fn run(&self, pairs: usize, deadline: Instant) -> anyhow::Result<Vec<Window>> {
        let mut windows = Vec::new();
        // The first one is not counted: it says how long the others are.
        let mut span = self.snapshot(&mut Vec::new())?;
        for _ in 0..pairs {
            let quiet = span.clamp(WITHOUT_MIN, WITHOUT_MAX);
            if Instant::now() + quiet + span + AFTER > deadline {
                break;
            }
            // The log may have asked for one of its own.
            let deadline = Instant::now() + WRITE_MAX;
            self.wait("a snapshot is not whole", deadline, &|watch| !watch.is_writing())?;
            let window = self.begin(Kind::Without)?;
            let until = window.from + quiet;
            // A snapshot that nobody here has asked for ends it early.
            self.comes_by(until, &Watch::is_writing)?;
            windows.push(self.end(window)?);
            span = self.snapshot(&mut windows)?;
        }
        Ok(windows)
    }

    /// Has a snapshot taken, and says for how long it was written. Should another one follow it at once, that counts as well.
    fn snapshot(&self, windows: &mut Vec<Window>) -> anyhow::Result<Duration> {
        let saving = (self.ask)()?;
        let deadline = Instant::now() + BEGIN_MAX;
        self.wait("no snapshot has begun", deadline, &Watch::is_writing)?;
        let mut span = Duration::ZERO;
        for _ in 0..AT_ONCE_MAX {
            let window = self.begin(Kind::Meanwhile)?;
            let deadline = window.from + WRITE_MAX;
            self.wait("a snapshot is not whole", deadline, &|watch| !watch.is_writing())?;
            let window = self.end(window)?;
            span += window.until - window.from;
            windows.push(window);
            let after = self.begin(Kind::After)?;
            let until = after.from + AFTER;
            self.comes_by(until, &Watch::is_writing)?;
            let after = self.end(after)?;
            windows.push(after);
            if after.until - after.from > AT_ONCE {
                saving.wait(WRITE_MAX)?;
                return Ok(span);
            }
        }
        bail!("the node writes one snapshot after the other: larger segments, or a lower --rate");
    }

    fn is_writing(&self) -> bool {
        self.staging.exists()
    }

    fn wait(&self, what: &str, deadline: Instant, is_there: &dyn Fn(&Self) -> bool) -> anyhow::Result<()> {
        ensure!(self.comes_by(deadline, is_there)?, "{what} in time; is the disk busy, or full?");
        Ok(())
    }

    /// Waits until something is there, or the moment has come. Says whether it is there.
    fn comes_by(&self, until: Instant, is_there: &dyn Fn(&Self) -> bool) -> anyhow::Result<bool> {
        while !is_there(self) {
            if !(self.is_loaded)() {
                bail!("the load has ended");
            }
            if Instant::now() >= until {
                return Ok(false);
            }
            thread::sleep(LOOK);
        }
        Ok(true)
    }

    /// A window that begins now; until it ends it has what the node had worked before.
    fn begin(&self, kind: Kind) -> anyhow::Result<Window> {
        let (from, worked) = (Instant::now(), self.process.worked()?);
        Ok(Window { kind, from, until: from, worked })
    }

    fn end(&self, window: Window) -> anyhow::Result<Window> {
        let (until, worked) = (Instant::now(), self.process.worked()? - window.worked);
        Ok(Window { until, worked, ..window })
    }
}

/// What of windows without a snapshot and with one is next to each other, as much of both: whatever changes slowly on the
/// machine is in both. What is too short to tell anything is left out.
pub fn neighbours(windows: &[Window]) -> Vec<(Window, Window)> {
    let near = |window: &Window, other: &Window| (window.until - window.from).min(other.until - other.from);
    let mut pairs = Vec::new();
    for (at, without) in windows.iter().enumerate().filter(|(_, window)| window.kind == Kind::Without) {
        let (before, behind) = windows.split_at(at);
        if let Some(meanwhile) = before.iter().rfind(|window| window.kind != Kind::After)
            && meanwhile.kind == Kind::Meanwhile
        {
            let span = near(without, meanwhile);
            pairs.push((without.first(span), meanwhile.last(span)));
        }
        if let Some(meanwhile) = behind.get(1).filter(|window| window.kind == Kind::Meanwhile) {
            let span = near(without, meanwhile);
            pairs.push((without.last(span), meanwhile.first(span)));
        }
    }
    pairs.retain(|(without, _)| without.until - without.from >= WITHOUT_MIN);
    pairs
}

/// What was seen in windows of one kind.
#[derive(Clone, Debug)]
pub struct Seen {
    /// How many windows.
    pub windows: usize,
    /// How long they were together.
    pub elapsed: Duration,
    /// How long the node had a processor.
    pub worked: Duration,
    /// Writes that were answered in them, whenever they were due.
    pub answered: u64,
    /// The latencies of those that were due in them, in ns.
    pub latency: Histogram<u64>,
}

impl Seen {
    /// Sorts what was seen by the windows that are wanted; these do not overlap and stand in their order.
    ///
    /// # Errors
    /// Never, with bounds that are right.
    pub fn of(
        samples: &[Sample],
        windows: &[Window],
        is_wanted: &dyn Fn(usize, Kind) -> bool,
    ) -> anyhow::Result<Seen> {
        let latency = Histogram::new_with_max(LATENCY_NS_MAX, 3)?;
        let wanted = |moment: Instant| {
            let at = windows.partition_point(|window| window.from <= moment).checked_sub(1);
            at.is_some_and(|at| moment < windows[at].until && is_wanted(at, windows[at].kind))
        };
        let mut seen =
            Seen { windows: 0, elapsed: Duration::ZERO, worked: Duration::ZERO, answered: 0, latency };
        for (at, window) in windows.iter().enumerate() {
            if is_wanted(at, window.kind) {
                seen.windows += 1;
                seen.elapsed += window.until - window.from;
                seen.worked += window.worked;
            }
        }
        for Sample { due, latency } in samples {
            seen.answered += u64::from(wanted(*due + *latency));
            if wanted(*due) {
                seen.latency.saturating_record(u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX));
            }
        }
        Ok(seen)
    }

    /// The latency at this quantile, in us.
    #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
    pub fn us(&self, quantile: f64) -> f64 {
        self.latency.value_at_quantile(quantile) as f64 / 1_000.0
    }

    /// Writes that were answered in a second.
    #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
    pub fn writes_per_second(&self) -> f64 {
        self.answered as f64 / self.elapsed.as_secs_f64()
    }

    /// The part of one processor that the node used, in percent.
    pub fn busy_percent(&self) -> f64 {
        100.0 * self.worked.as_secs_f64() / self.elapsed.as_secs_f64()
    }
}

/// By how much one is above the other, in percent.
pub fn above_percent(one: f64, other: f64) -> f64 {
    100.0 * (one / other - 1.0)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_moment_that_has_passed_ends_a_window_and_fails_only_who_waits_for_more() {
        let process = Process::start(&mut Command::new("true")).unwrap();
        let watch = Watch {
            process: &process,
            staging: PathBuf::from("no such file"),
            ask: &|| bail!("nobody asks"),
            is_loaded: &|| true,
        };
        let now = Instant::now();
        assert!(!watch.comes_by(now, &Watch::is_writing).unwrap());
        let error = watch.wait("it has not begun", now, &Watch::is_writing).unwrap_err();
        assert!(error.to_string().starts_with("it has not begun in time"), "{error}");
        assert!(watch.comes_by(now, &|watch| !watch.is_writing()).unwrap());
    }

    #[test]
    fn neighbours_are_as_long_as_the_shorter_one_and_meet_where_the_windows_do() {
        let origin = Instant::now();
        let at = |ms| origin + Duration::from_millis(ms);
        let window =
            |kind, from, until| Window { kind, from: at(from), until: at(until), worked: Duration::ZERO };
        let windows = [
            window(Kind::Without, 0, 7_000),
            window(Kind::Meanwhile, 7_000, 20_000),
            window(Kind::After, 20_000, 20_500),
            window(Kind::Without, 20_500, 21_500),
            window(Kind::Meanwhile, 21_500, 40_000),
            window(Kind::After, 40_000, 40_500),
            window(Kind::Without, 40_500, 40_600),
        ];
        let found: Vec<[Instant; 4]> = neighbours(&windows)
            .iter()
            .map(|(without, meanwhile)| [without.from, without.until, meanwhile.from, meanwhile.until])
            .collect();
        let wanted =
            [[0, 7_000, 7_000, 14_000], [20_500, 21_500, 19_000, 20_000], [20_500, 21_500, 21_500, 22_500]];
        assert_eq!(found, wanted.map(|pair| pair.map(at)));
    }

    #[test]
    fn a_write_belongs_to_the_window_in_which_it_was_due() {
        let origin = Instant::now();
        let at = |ms| origin + Duration::from_millis(ms);
        let window =
            |kind, from, until| Window { kind, from: at(from), until: at(until), worked: Duration::ZERO };
        let windows = [
            window(Kind::Without, 100, 200),
            window(Kind::Meanwhile, 210, 300),
            window(Kind::Without, 300, 400),
        ];
        let sample = |due, ms| Sample { due: at(due), latency: Duration::from_millis(ms) };
        let samples = [sample(99, 1), sample(199, 60), sample(205, 1), sample(210, 90), sample(400, 1)];
        let of = |kind| Seen::of(&samples, &windows, &|_, found| found == kind).unwrap();
        let (without, meanwhile) = (of(Kind::Without), of(Kind::Meanwhile));
        assert_eq!((without.windows, without.elapsed), (2, Duration::from_millis(200)));
        // The one that was due before the first window is answered in it; the one of 210 in the last.
        assert_eq!((without.latency.len(), without.answered), (1, 2));
        assert_eq!((meanwhile.latency.len(), meanwhile.answered), (1, 1));
        assert!((meanwhile.us(1.0) - 90_000.0).abs() < 100.0, "{}", meanwhile.us(1.0));
        let second = Seen::of(&samples, &windows, &|at, _| at == 2).unwrap();
        assert_eq!((second.windows, second.latency.len(), second.answered), (1, 0, 1));
    }
}
