//! The mutation check: every known-bad variant is run until a rule is broken (ARCHITECTURE section 7).
//!
//! Invariant: a variant counts as seen only if the same run is good without it; the seed named is the lowest that shows
//! it, however many threads look. A variant of the real parts needs the feature `mutants`, one of a driver does not.
//! Deliberately absent: the variants themselves; those are in `lockstep_wire::mutant` and `world::defect`.

mod plays;
mod shapes;
mod table;

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use lockstep_wire::mutant::Mutant;

pub use table::{TABLE, UNAIDED};

use crate::oracle::{NO_PANIC, Verdict, violated, words_of_panic};
use crate::reference;
use crate::search::run_plan;
use crate::world::defect::Defect;
use crate::world::plan::Plan;
use crate::world::trace::Trace;

/// What is done wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// By one of the real parts.
    Part(Mutant),
    /// By a driver.
    Driver(Defect),
}

impl Subject {
    /// What it is called in the table and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Subject::Part(mutant) => mutant.name(),
            Subject::Driver(defect) => defect.name(),
        }
    }

    /// Whether this build can run it.
    pub fn is_built_in(self) -> bool {
        match self {
            Subject::Part(_) => lockstep_wire::mutant::ARE_BUILT_IN,
            Subject::Driver(_) => true,
        }
    }
}

/// Where it is looked for.
#[derive(Clone, Copy, Debug)]
pub enum Trial {
    /// In the run that the seed draws.
    Drawn,
    /// In a run of a plan that gives it its chance.
    Run(fn(u64) -> Plan),
    /// In a run whose faults come at moments that are waited for.
    Play(fn(Plan) -> Verdict),
    /// In random commands to the table and its model, so many of them.
    Commands(u64),
}

/// A row of the table.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// What is done wrong.
    pub subject: Subject,
    /// Where it is looked for.
    pub trial: Trial,
    /// How many seeds at most until it is seen.
    pub seeds: u64,
    /// The rule that must be broken, while the reference model is not asked; any rule if there is none.
    pub rule: Option<&'static str>,
}

/// How a variant was seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sighting {
    /// The lowest seed that shows it.
    pub seed: u64,
    /// The rule that it broke.
    pub rule: &'static str,
    /// What was seen.
    pub detail: String,
}

/// What became of a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// A rule was broken.
    Seen(Sighting),
    /// None was within the bound.
    Survived,
    /// The run that shows it breaks a rule without it, too.
    Spoilt(Sighting),
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Finding::Seen(sighting) => write!(f, "{:>6}  {}", sighting.seed, sighting.rule),
            Finding::Survived => f.write_str("     -  SURVIVED"),
            Finding::Spoilt(sighting) => {
                write!(f, "{:>6}  BROKEN WITHOUT IT: {}: {}", sighting.seed, sighting.rule, sighting.detail)
            }
        }
    }
}

impl Row {
    /// Looks for the variant, seed after seed from 1 on, on so many threads.
    pub fn hunt(&self, threads: usize) -> Finding {
        let next = AtomicU64::new(1);
        let lowest: Mutex<Option<Sighting>> = Mutex::new(None);
        std::thread::scope(|scope| {
            for _ in 0..threads.max(1) {
                scope.spawn(|| {
                    loop {
                        let seed = next.fetch_add(1, Ordering::Relaxed);
                        let is_late =
                            |known: &Option<Sighting>| known.as_ref().is_some_and(|it| it.seed < seed);
                        if seed > self.seeds || is_late(&lowest.lock().expect("nobody panics while he looks"))
                        {
                            return;
                        }
                        if let Err(violation) = self.attempt(seed, true) {
                            let mut lowest = lowest.lock().expect("nobody panics while he looks");
                            if !is_late(&lowest) {
                                let (rule, detail) = (violation.rule, violation.detail);
                                *lowest = Some(Sighting { seed, rule, detail });
                            }
                        }
                    }
                });
            }
        });
        match lowest.into_inner().expect("nobody panics while he looks") {
            None => Finding::Survived,
            Some(sighting) => match self.attempt(sighting.seed, false) {
                Ok(()) => Finding::Seen(sighting),
                Err(violation) => Finding::Spoilt(Sighting {
                    seed: sighting.seed,
                    rule: violation.rule,
                    detail: violation.detail,
                }),
            },
        }
    }

    /// Runs one seed, with what is done wrong or as it should be.
    ///
    /// # Errors
    /// The rule that was broken.
    pub fn attempt(&self, seed: u64, is_wrong: bool) -> Verdict {
        let defect = match self.subject {
            Subject::Driver(defect) if is_wrong => Some(defect),
            Subject::Driver(_) | Subject::Part(_) => None,
        };
        let _chosen = match self.subject {
            Subject::Part(mutant) if is_wrong => Some(Chosen::new(mutant)),
            Subject::Part(_) | Subject::Driver(_) => None,
        };
        let is_model_asked = self.rule.is_none();
        let verdict = match self.trial {
            Trial::Drawn => run(Plan { defect, is_model_asked, ..Plan::drawn(seed) }),
            Trial::Run(plan) => run(Plan { defect, is_model_asked, ..plan(seed) }),
            Trial::Play(play) => guarded(|| play(Plan { defect, is_model_asked, ..Plan::quiet(seed) })),
            Trial::Commands(count) if !is_model_asked => {
                guarded(|| reference::search::search_unaided(seed, count))
            }
            Trial::Commands(count) => guarded(|| match reference::search::search(seed, count) {
                Ok(_) => Ok(()),
                Err(difference) => {
                    violated("the table does what docs/SEMANTICS.md says", difference.to_string())
                }
            }),
        };
        // With it, only the rule that is looked for counts; without it, none may be broken.
        verdict.or_else(|violation| match self.rule {
            Some(rule) if is_wrong && violation.rule != rule => Ok(()),
            _ => Err(violation),
        })
    }
}

fn run(plan: Plan) -> Verdict {
    run_plan(&plan, Trace::silent()).map(|_| ()).map_err(|failure| failure.violation)
}

/// An assertion that fails inside the real parts is a broken rule as well.
fn guarded(act: impl FnOnce() -> Verdict) -> Verdict {
    let outcome = catch_unwind(AssertUnwindSafe(act));
    outcome.unwrap_or_else(|panic| violated(NO_PANIC, words_of_panic(panic.as_ref())))
}

/// Has this thread run a variant until it is dropped.
struct Chosen;

impl Chosen {
    #[cfg(feature = "mutants")]
    fn new(mutant: Mutant) -> Chosen {
        lockstep_wire::mutant::choose(Some(mutant));
        Chosen
    }

    #[cfg(not(feature = "mutants"))]
    fn new(mutant: Mutant) -> Chosen {
        panic!("{} is not built in; build with the feature `mutants`", mutant.name());
    }
}

impl Drop for Chosen {
    fn drop(&mut self) {
        #[cfg(feature = "mutants")]
        lockstep_wire::mutant::choose(None);
    }
}
