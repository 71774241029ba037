//! The subcommands, one file each: arguments in, an exit code out.

pub(crate) mod dev;
pub(crate) mod format;
mod log_lines;
pub(crate) mod serve;
mod stop;
