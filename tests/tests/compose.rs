//! What a person installs, held against the program: `docker-compose.yml`, the image and NATS. No container is started: the files
//! must agree with each other and with the binary. `control_room.rs` does so for what watches it.
#![allow(clippy::unwrap_used)]

use std::{
    collections::{BTreeMap, BTreeSet},
    process::Command,
};

use pipeline::{
    files::{root, text, words_with_prefix, yaml},
    process::run,
};
use runtime::streams::STREAMS;
use serde_json::{Map, Value};

const ADMIN_PORT: &str = "9100";

fn services() -> Map<String, Value> {
    yaml("docker-compose.yml")["services"].as_object().unwrap().clone()
}

/// The strings of a list; empty when there is none.
fn strings(value: &Value) -> Vec<String> {
    value.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
}

/// Whether an image is built from this repository.
fn is_ours(image: &str) -> bool {
    image.starts_with("postrider:") || image.starts_with("postrider-dev:")
}

/// The subcommand our image runs in a service; `None` for other images.
fn subcommand(service: &Value) -> Option<Vec<String>> {
    is_ours(service["image"].as_str().unwrap()).then(|| strings(&service["command"]))
}

/// What `postrider <command> --help` says.
fn help(command: &[&str]) -> String {
    run(&[command, &["--help"]].concat(), &BTreeMap::new())
}

/// The environment variables a subcommand reads.
fn settings_of(command: &[&str]) -> BTreeSet<String> {
    let text = help(command);
    // Each stands in its own brackets: `[env: POSTRIDER_LOG=]`; lines may be wrapped between the words.
    let bracketed: String =
        text.split("[env:").skip(1).filter_map(|rest| rest.split(']').next()).collect::<Vec<_>>().join(" ");
    words_with_prefix(&bracketed, "POSTRIDER_")
}

/// The stages `postrider stage --help` lists.
fn stages() -> BTreeSet<String> {
    let text = help(&["stage"]);
    let listed = text.split("Possible values:").nth(1).expect("the stages are listed with their meaning");
    listed
        .lines()
        .skip(1)
        .map_while(|line| line.trim().strip_prefix("- "))
        .filter_map(|line| line.split(':').next())
        .map(str::to_owned)
        .collect()
}

#[test]
fn every_setting_in_the_compose_file_is_one_its_own_command_reads() {
    for (name, service) in services() {
        let Some(command) = subcommand(&service) else {
            assert!(
                words_with_prefix(&service["environment"].to_string(), "POSTRIDER_").is_empty(),
                "{name} is not ours"
            );
            continue;
        };
        // `streams apply` reads what `streams` reads; `stage <name>` what `stage` reads.
        let mut known = settings_of(&[command[0].as_str()]);
        // Run in the containers of processes: `docker compose exec ingress postrider hook list`.
        known.extend(settings_of(&["hook"]));
        assert!(!known.is_empty(), "{command:?} lists no setting");
        let empty = Map::new();
        for set in service["environment"].as_object().unwrap_or(&empty).keys() {
            assert!(known.contains(set), "{name}: `postrider {}` does not read {set}", command.join(" "));
        }
    }
}

#[test]
fn every_setting_a_stage_or_the_ingress_requires_is_set() {
    for (name, service) in services() {
        let runs_engine = subcommand(&service).is_some_and(|command| command[0] == "ingress" || command[0] == "stage");
        if runs_engine {
            for required in
                ["POSTRIDER_DATABASE_URL", "POSTRIDER_NATS_URL", "POSTRIDER_MASTER_KEY", "POSTRIDER_ADMIN_ADDR"]
            {
                assert!(service["environment"][required].is_string(), "{name} lacks {required}");
            }
            let admin = service["environment"]["POSTRIDER_ADMIN_ADDR"].as_str().unwrap();
            assert!(admin.ends_with(&format!(":{ADMIN_PORT}")), "{name} answers probes on {admin}");
        }
    }
}

#[test]
fn every_stage_has_a_service_and_no_service_runs_a_stage_there_is_not() {
    let stages = stages();
    assert!(stages.contains("delivery"), "{stages:?}");
    let mut served = BTreeSet::new();
    for (name, service) in services() {
        if let Some(command) = subcommand(&service).filter(|command| command[0] == "stage") {
            assert_eq!(command[1..], [name.as_str()], "a stage's service bears its name");
            served.insert(name);
        }
    }
    assert_eq!(served, stages);
}

#[test]
fn every_mounted_file_is_in_the_repository_and_every_volume_declared() {
    let volumes = yaml("docker-compose.yml")["volumes"].as_object().unwrap().clone();
    let mut used = BTreeSet::new();
    for (name, service) in services() {
        for mount in strings(&service["volumes"]) {
            let (source, rest) = mount.split_once(':').unwrap();
            if let Some(path) = source.strip_prefix("./") {
                assert!(root().join(path).exists(), "{name} mounts {path}, which is not there");
                assert!(rest.ends_with(":ro"), "{name} may write to {path}");
            } else {
                assert!(volumes.contains_key(source), "{name}: volume {source} is not declared");
                used.insert(source.to_owned());
            }
        }
    }
    assert_eq!(used, volumes.keys().cloned().collect(), "declared volumes are used");
}

#[test]
fn images_are_pinned_and_ours_has_the_version_of_the_program() {
    let dockerfile = text("ops/deploy/Dockerfile");
    let stages: Vec<&str> =
        dockerfile.lines().filter_map(|line| line.split_once(" AS ")).map(|(_, name)| name).collect();
    let bases = dockerfile
        .lines()
        .filter_map(|line| line.strip_prefix("FROM "))
        .map(|line| line.split(' ').next().unwrap().to_owned())
        .filter(|base| !stages.contains(&base.as_str()));
    let images = services().into_iter().map(|(_, service)| service["image"].as_str().unwrap().to_owned());
    for image in images.chain(bases) {
        let tag = image.rsplit_once(':').unwrap_or_else(|| panic!("{image} has no tag")).1;
        let is_a_version = tag.split('.').count() >= 2 && tag.contains(|c: char| c.is_ascii_digit());
        assert!(is_a_version, "{image} is not pinned to a version");
        if is_ours(&image) {
            assert_eq!(tag, env!("CARGO_PKG_VERSION"));
        }
    }
}

#[test]
fn the_image_is_built_from_a_file_that_is_there() {
    for (name, service) in services() {
        if subcommand(&service).is_some() {
            assert_eq!(service["build"]["context"], ".", "{name}");
            assert!(root().join(service["build"]["dockerfile"].as_str().unwrap()).is_file(), "{name}");
        }
    }
}

#[test]
fn only_the_sink_runs_the_image_for_development() {
    for (name, service) in services() {
        let Some(command) = subcommand(&service) else { continue };
        let is_development = service["image"].as_str().unwrap().starts_with("postrider-dev:");
        assert_eq!(is_development, command == ["sink"], "{name}");
        assert_eq!(is_development.then_some("dev"), service["build"]["target"].as_str(), "{name}");
    }
    let dockerfile = text("ops/deploy/Dockerfile");
    let last = dockerfile.rsplit("\nFROM ").next().unwrap();
    assert!(last.contains("COPY --from=build "), "an image built without a target is production: {last}");
    let built = dockerfile
        .lines()
        .filter(|line| line.contains("cargo build"))
        .map(|line| line.contains("--no-default-features"));
    assert_eq!(built.collect::<Vec<_>>(), [true, false], "production first, then development");
}

/// What `cargo tree` prints, a line for each crate.
fn cargo_tree(arguments: &[&str]) -> BTreeSet<String> {
    let output = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["tree", "--offline", "--locked", "--prefix", "none"])
        .args(arguments)
        .current_dir(root())
        // As the image is built: with the features of what is built, whatever unites those of the whole workspace here.
        .env_remove("CARGO_RESOLVER_FEATURE_UNIFICATION")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).filter(|line| !line.is_empty()).collect()
}

/// The crates a build of the program consists of.
fn crates_of_program(arguments: &[&str]) -> BTreeSet<String> {
    cargo_tree(&[&["--package", "postrider", "--edges", "normal", "--format", "{lib}"], arguments].concat())
}

#[test]
fn production_has_neither_sink_nor_installers() {
    assert!(crates_of_program(&[]).contains("devtools"), "what is asked for below is there otherwise");
    let production = crates_of_program(&["--no-default-features", "--features", "otlp"]);
    assert!(production.contains("ingress") && production.contains("otlp"), "{production:?}");
    assert!(!production.contains("devtools"), "{production:?}");
    let smallest = crates_of_program(&["--no-default-features"]);
    assert!(!smallest.iter().any(|name| name.starts_with("opentelemetry_") || name == "otlp"), "{smallest:?}");
    let main = text("ops/cli/src/main.rs");
    for command in ["Dev(", "Seed(", "Sink("] {
        let mut lines = main.lines().zip(main.lines().skip(1));
        let is_of_the_feature = lines
            .any(|(before, line)| line.trim().starts_with(command) && before.trim() == "#[cfg(feature = \"dev\")]");
        assert!(is_of_the_feature, "{command}");
    }
}

/// Other systems have other crates; the list is of the one that production runs on.
#[cfg(target_os = "linux")]
#[test]
fn no_crate_is_there_twice_without_a_reason() {
    let skipped: BTreeSet<String> = text(".deny.toml")
        .lines()
        .skip_while(|line| !line.starts_with("skip = ["))
        .filter_map(|line| Some(line.trim().strip_prefix("{ crate = \"")?.split('"').next()?.to_owned()))
        .collect();
    let mut versions: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for line in cargo_tree(&["--workspace", "--duplicates", "--depth", "0", "--format", "{p}"]) {
        let (name, version) = line.split_once(" v").unwrap();
        versions.entry(name.to_owned()).or_default().insert(version.split(' ').next().unwrap().to_owned());
    }
    // A crate that is built twice with different features is one version.
    versions.retain(|_, versions| versions.len() > 1);
    let mut used = BTreeSet::new();
    for (name, versions) in versions {
        let is_skipped = |version: &&String| {
            let skip = skipped.iter().find(|skip| {
                skip.split_once('@')
                    .is_some_and(|(of, prefix)| of == name && version.starts_with(&format!("{prefix}.")))
            });
            used.extend(skip.cloned());
            skip.is_some()
        };
        let kept = versions.len() - versions.iter().filter(is_skipped).count();
        assert_eq!(kept, 1, "{name}: {versions:?}; an older one needs its reason in .deny.toml");
    }
    assert_eq!(used, skipped, "each exception in .deny.toml is needed");
}

#[test]
fn every_service_has_a_health_check_or_runs_once() {
    let services = services();
    let mut waited_for: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (_, service) in &services {
        for (dependency, how) in service["depends_on"].as_object().into_iter().flatten() {
            let condition = how["condition"].as_str().unwrap().to_owned();
            waited_for.entry(dependency.clone()).or_default().insert(condition);
        }
    }
    for (name, service) in &services {
        let runs_once = service["restart"] == "no";
        let expected = if runs_once { "service_completed_successfully" } else { "service_healthy" };
        for condition in waited_for.get(name).into_iter().flatten() {
            assert_eq!(condition, expected, "what waits for {name}");
        }
        assert_eq!(runs_once, service["healthcheck"].is_null(), "{name}: a health check, or restart: \"no\"");
        assert!(!runs_once || waited_for.contains_key(name), "{name} runs once and nobody waits for it");
    }
    assert!(waited_for.keys().all(|name| services.contains_key(name)), "{waited_for:?}");
}

#[test]
fn containers_are_read_only_without_rights_and_not_root() {
    for (name, service) in services() {
        assert_eq!(service["read_only"], true, "{name}");
        assert_eq!(strings(&service["cap_drop"]), ["ALL"], "{name}");
        // Prometheus, Grafana and our own image name an unprivileged user themselves. A new volume needs its owner set once.
        let sets_owner = name == "nats-volume";
        assert!(sets_owner || service["user"] != "root", "{name}");
        assert_eq!(sets_owner, service["cap_add"].is_array(), "{name}");
    }
    let user =
        text("ops/deploy/Dockerfile").lines().find_map(|line| line.strip_prefix("USER ").map(str::to_owned)).unwrap();
    assert!(!user.starts_with('0') && !user.starts_with("root"), "{user}");
}

#[test]
fn no_secret_stands_in_the_compose_file_and_nothing_is_open_to_the_world() {
    let compose = text("docker-compose.yml");
    for (name, service) in services() {
        for (key, value) in service["environment"].as_object().into_iter().flatten() {
            let is_secret = ["PASSWORD", "MASTER_KEY", "DATABASE_URL"].iter().any(|word| key.ends_with(word));
            assert!(!is_secret || value.as_str().unwrap().contains(":?"), "{name}: {key} must come from outside");
        }
        for port in strings(&service["ports"]) {
            assert!(port.starts_with("127.0.0.1:"), "{name} publishes {port} beyond this machine");
        }
    }
    assert!(!compose.contains("svc_live_") && !compose.contains("svc_test_"));
}

#[test]
fn prometheus_scrapes_every_process_of_the_engine_and_nothing_else_of_ours() {
    let config = yaml("ops/prometheus/prometheus.yml");
    let jobs = config["scrape_configs"].as_array().unwrap();
    let found = jobs.iter().flat_map(|job| job["dns_sd_configs"].as_array().cloned().unwrap_or_default());
    let mut scraped = BTreeSet::new();
    for names in found {
        assert_eq!(names["port"].to_string(), ADMIN_PORT);
        scraped.extend(strings(&names["names"]));
    }
    let engine: BTreeSet<String> = services()
        .into_iter()
        .filter(|(_, service)| service["environment"]["POSTRIDER_ADMIN_ADDR"].is_string())
        .map(|(name, _)| name)
        .collect();
    assert_eq!(scraped, engine);
    let mounted = strings(&services()["prometheus"]["volumes"]);
    for file in strings(&config["rule_files"]).iter().map(String::as_str).chain(["prometheus.yml"]) {
        // `rules/*.yml`: the directory is mounted.
        let target = format!(":/etc/prometheus/{}:ro", file.split('/').next().unwrap());
        assert!(mounted.iter().any(|mount| mount.ends_with(&target)), "{file} is not mounted where Prometheus looks");
    }
}

#[test]
fn nats_syncs_always_and_has_room_for_every_stream() {
    let config = text("ops/nats/nats.conf");
    let value = |key: &str| {
        let line =
            config.lines().find_map(|line| line.trim().strip_prefix(key)).unwrap_or_else(|| panic!("{key} is not set"));
        line.trim().to_owned()
    };
    assert_eq!(value("sync_interval:"), "always");
    let room: i64 = value("max_file_store:").trim_end_matches("GB").parse().unwrap();
    let reserved: i64 = STREAMS.iter().map(|stream| stream.max_bytes).sum();
    assert!(reserved <= room << 30, "the streams may hold {reserved} bytes, the server {room} GB");
}
