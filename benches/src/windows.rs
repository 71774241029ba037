//! What a snapshot costs a node under load: windows of one run, with a snapshot being written and without, take turns.
//!
//! The snapshots are those that the node's log asks for, as it always does: nobody hastens them, for one that is asked for
//! makes the next come sooner, and leaves little time without any. A window with a snapshot lasts from when its file
//! appears until it is whole; what follows for a moment, when its copies and the file of an older one go, is neither and shown
//! by itself; from then until the next one is a window without. Invariants: a write belongs to the window in which it was due,
//! and to one only; whatever is waited for has a bound. Deliberately absent: how the load is driven, and what is printed.

use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use hdrhistogram::Histogram;

use crate::pace::{Course, Sample};
use crate::process::Process;

/// Between two looks for the file of a snapshot.
const LOOK: Duration = Duration::from_millis(1);
/// How long a snapshot may take to be written.
const WRITE_MAX: Duration = Duration::from_secs(60);
/// What follows a snapshot.
const AFTER: Duration = Duration::from_millis(500);
/// What is shorter tells nothing.
const SPAN_MIN: Duration = Duration::from_millis(200);
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

/// Who notices when a node takes snapshots.
pub struct Watch<'a> {
    /// The node.
    pub process: &'a Process,
    /// The file that is there while a snapshot is being written.
    pub staging: PathBuf,
    /// Whether there is load.
    pub is_loaded: &'a dyn Fn() -> bool,
}

impl Watch<'_> {
    /// Waits until the load has its pace, in writes a second.
    ///
    /// # Errors
    /// When it has none in time.
    pub fn wait_for_pace(&self, course: &Course, patience: Duration) -> anyhow::Result<f64> {
        self.comes_by(Instant::now() + patience, &|_| course.pace().is_some())?;
        course.pace().context("the load has no pace in time; is the disk busy, or full?")
    }

    /// Windows that take turns: so many of each kind, or as many as are over before the deadline.
    ///
    /// # Errors
    /// When there is none before the deadline, or the load has ended.
    pub fn run(&self, pairs: usize, deadline: Instant) -> anyhow::Result<Vec<Window>> {
        let mut windows = Vec::new();
        // What came before the first snapshot is not like what comes after one, and that one may have begun already.
        self.window(Kind::Without, deadline)?;
        self.window(Kind::Meanwhile, deadline)?;
        for kind in [Kind::After, Kind::Without, Kind::Meanwhile].repeat(pairs) {
            let Some(window) = self.window(kind, deadline)? else { break };
            windows.push(window);
        }
        if windows.iter().all(|window| window.kind != Kind::Meanwhile) {
            bail!(
                "no two snapshots were written in time: a higher --rate, or smaller segments, has them sooner"
            );
        }
        Ok(windows)
    }

    /// A window from now until it ends by itself; none when that is not before the deadline. Fails when a snapshot takes too long.
    fn window(&self, kind: Kind, deadline: Instant) -> anyhow::Result<Option<Window>> {
        let (from, worked) = (Instant::now(), self.process.worked()?);
        let is_over = match kind {
            Kind::Without => self.comes_by(deadline, &Watch::is_writing)?,
            Kind::Meanwhile => {
                let is_whole = self.comes_by(deadline.min(from + WRITE_MAX), &|watch| !watch.is_writing())?;
                ensure!(
                    is_whole || Instant::now() >= deadline,
                    "a snapshot is not whole after {WRITE_MAX:?}; is the disk busy, or full?"
                );
                is_whole
            }
            Kind::After => {
                self.comes_by(deadline.min(from + AFTER), &Watch::is_writing)?;
                Instant::now() < deadline
            }
        };
        let (until, worked) = (Instant::now(), self.process.worked()? - worked);
        Ok(is_over.then_some(Window { kind, from, until, worked }))
    }

    fn is_writing(&self) -> bool {
        self.staging.exists()
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
    pairs.retain(|(without, _)| without.until - without.from >= SPAN_MIN);
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
    fn a_window_ends_by_itself_or_there_is_none_and_without_any_a_run_says_what_to_do() {
        let process = Process::start(&mut Command::new("true")).unwrap();
        let written = Watch { process: &process, staging: PathBuf::from("."), is_loaded: &|| true };
        let idle = Watch { staging: PathBuf::from("no such file"), ..written };
        let (now, later) = (Instant::now(), Instant::now() + Duration::from_secs(60));
        for (watch, kind) in [(&written, Kind::Without), (&idle, Kind::Meanwhile), (&written, Kind::After)] {
            let window = watch.window(kind, later).unwrap().unwrap();
            assert!(window.kind == kind && window.until - window.from < AFTER, "{window:?}");
        }
        let after = idle.window(Kind::After, later).unwrap().unwrap();
        assert!(after.until - after.from >= AFTER, "{after:?}");
        for (watch, kind) in [(&idle, Kind::Without), (&written, Kind::Meanwhile), (&written, Kind::After)] {
            assert!(watch.window(kind, now).unwrap().is_none(), "{kind:?}");
        }
        let error = idle.run(2, now).unwrap_err();
        assert!(error.to_string().contains("a higher --rate"), "{error}");
        let ended = Watch { is_loaded: &|| false, ..idle };
        assert!(ended.run(2, later).unwrap_err().to_string().contains("the load has ended"));
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
