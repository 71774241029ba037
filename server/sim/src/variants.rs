//! `lockstep-sim mutants`: builds the variants in, runs each, and prints the table.
//!
//! Invariant: the exit code says whether every variant was seen. Deliberately absent: the search for one; that is
//! [`Row::hunt`].

use std::process::{Command, ExitCode};

use lockstep_sim::mutants::{Finding, Row, TABLE, UNAIDED};

/// What to run.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Options {
    /// Only the variant of this name.
    #[arg(long, value_name = "NAME")]
    only: Option<String>,
    /// So many seeds at most for each, instead of what the table says.
    #[arg(long)]
    seeds: Option<u64>,
    /// Threads; as many as there are cores unless said otherwise.
    #[arg(long)]
    threads: Option<usize>,
}

/// Runs the variants, in a build of its own if this one does not have them.
pub(crate) fn run(options: &Options) -> ExitCode {
    if !lockstep_wire::mutant::ARE_BUILT_IN {
        return build_and_run();
    }
    let rows: Vec<&Row> = TABLE
        .iter()
        .chain(UNAIDED)
        .filter(|row| options.only.as_ref().is_none_or(|only| only == row.subject.name()))
        .collect();
    if rows.is_empty() {
        let names: Vec<&str> = TABLE.iter().map(|row| row.subject.name()).collect();
        eprintln!("there is no variant of this name; there are: {}", names.join(", "));
        return ExitCode::FAILURE;
    }
    // What a variant makes the real parts panic with is in the table.
    std::panic::set_hook(Box::new(|_| {}));
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mut unseen = 0;
    println!("{:<38}{:>6}{:>6}  broken rule", "variant", "within", "seed");
    for row in &rows {
        let row = Row { seeds: options.seeds.unwrap_or(row.seeds), ..**row };
        let finding = row.hunt(options.threads.unwrap_or(cores));
        unseen += u32::from(!matches!(finding, Finding::Seen(_)));
        println!("{:<38}{:>6}{finding}", row.subject.name(), row.seeds);
    }
    println!("{} rows, {unseen} not seen", rows.len());
    if unseen == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Starts the build that has the variants, apart from the ordinary one, and passes on what comes of it. It needs
/// nothing that the ordinary one did not.
fn build_and_run() -> ExitCode {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let outcome = Command::new(cargo)
        .args(["run", "--release", "--frozen", "--quiet", "-p", "lockstep-sim", "--features", "mutants"])
        .args(["--target-dir", "target/mutants", "--"])
        .args(std::env::args_os().skip(1))
        .current_dir(root)
        .status();
    match outcome {
        Ok(status) => {
            status.code().and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from)
        }
        Err(error) => {
            eprintln!("cargo cannot be started: {error}");
            ExitCode::FAILURE
        }
    }
}
