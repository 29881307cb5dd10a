//! What callers say about a connection, and its checks.

use providers::{
    Connection, ConnectionFault, ConnectionSettings, HostPolicy, ProviderKind, SECRET_MAX_BYTES, check_secret,
};
use schemars::JsonSchema;
use secrecy::SecretString;
use serde::Deserialize;

use super::store::LockedConnection;
use crate::{
    pipeline::{
        Faults, Patch,
        error::ApiError,
        types::{Line, Name},
        validate::NAME_MAX,
    },
    public::hooks,
};

/// Secrets or topics that events of one connection are verified with.
const HOOK_CHECKS_MAX: usize = 10;
const TOPIC_MAX_BYTES: usize = 256;
/// The states a caller can choose.
const STATUSES: [&str; 2] = ["active", "disabled"];

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct CreateConnection {
    // No relays, which are the operator's: their host would be the caller's own choice.
    #[schemars(with = "String", extend("enum" = ProviderKind::HTTP))]
    provider: Option<String>,
    /// To recognise it by; unique within the tenant.
    #[schemars(with = "Name<NAME_MAX>")]
    name: Option<String>,
    /// SES: `access key id:secret access key[:session token]`. Others: the API key.
    #[schemars(with = "String", length(min = 1, max = SECRET_MAX_BYTES))]
    secret: Option<String>,
    /// SES: the AWS region. SendGrid, Mailgun: `us` or `eu`.
    #[schemars(with = "Option<Line<NAME_MAX>>")]
    region: Option<String>,
    /// Mailgun: the domain the account sends for.
    #[schemars(with = "Option<Line<NAME_MAX>>")]
    domain: Option<String>,
    /// Postmark: the message stream.
    #[schemars(with = "Option<Line<NAME_MAX>>")]
    stream: Option<String>,
    /// SES: the configuration set.
    #[schemars(with = "Option<Line<NAME_MAX>>")]
    configuration_set: Option<String>,
    /// Most mails a second, of each delivery process.
    #[schemars(range(min = 1))]
    max_per_second: Option<u32>,
    /// What the provider's events are verified with; any of them counts. Postmark: `user:password`, as in the address entered there.
    /// SendGrid: the verification key. Mailgun: the HTTP webhook signing key. Resend: `whsec_…`. Never shown.
    #[schemars(length(max = HOOK_CHECKS_MAX), inner(length(min = 1, max = SECRET_MAX_BYTES)))]
    hook_secrets: Option<Vec<String>>,
    /// SES: the ARNs of the SNS topics whose events count.
    #[schemars(length(max = HOOK_CHECKS_MAX), inner(length(min = 1, max = TOPIC_MAX_BYTES)))]
    hook_topics: Option<Vec<String>>,
}

/// How the events of a connection are to be verified; `None`: as before.
pub(super) struct WantedHook {
    pub(super) secrets: Option<Vec<String>>,
    pub(super) topics: Option<Vec<String>>,
}

impl WantedHook {
    fn check(&self, provider: &str, faults: &mut Faults) {
        let (secrets, topics) =
            (self.secrets.as_deref().unwrap_or_default(), self.topics.as_deref().unwrap_or_default());
        let is_long =
            |texts: &[String], max| texts.len() > HOOK_CHECKS_MAX || texts.iter().any(|text| text.len() > max);
        if is_long(secrets, SECRET_MAX_BYTES) || secrets.iter().any(|secret| secret.contains(char::is_control)) {
            faults.add("hook_secrets", "invalid", format!("may be {HOOK_CHECKS_MAX}, each of one line"));
        } else if let Some(fault) = secrets.iter().find_map(|secret| hooks::fault(provider, secret, &[])) {
            faults.add("hook_secrets", "invalid", fault);
        }
        if is_long(topics, TOPIC_MAX_BYTES) {
            faults.add("hook_topics", "invalid", format!("may be {HOOK_CHECKS_MAX}"));
        } else if let Some(fault) =
            Some(topics).filter(|topics| !topics.is_empty()).and_then(|topics| hooks::fault(provider, "", topics))
        {
            faults.add("hook_topics", "invalid", fault);
        }
    }
}

impl CreateConnection {
    /// The name, the account, and how its events are verified. Every fault is named by its field.
    pub(super) fn checked(self) -> Result<(String, Connection, WantedHook), ApiError> {
        let mut faults = Faults::default();
        let name = faults.name("name", self.name);
        let kind = faults.required("provider", self.provider).and_then(|text| {
            faults.one_of("provider", &text, &ProviderKind::HTTP);
            ProviderKind::parse(&text).filter(|kind| *kind != ProviderKind::Smtp)
        });
        let secret = SecretString::from(faults.required("secret", self.secret).unwrap_or_default());
        let hook = WantedHook { secrets: self.hook_secrets, topics: self.hook_topics };
        let Self { region, domain, stream, configuration_set, max_per_second, .. } = self;
        let settings = ConnectionSettings { region, domain, stream, configuration_set, max_per_second, base_url: None };
        check_lines(&mut faults, &settings);
        if let Some(kind) = kind {
            note(&mut faults, settings.check(kind, &HostPolicy::default()).err());
            note(&mut faults, check_secret(kind, &secret).err());
            hook.check(kind.as_str(), &mut faults);
        }
        faults.finish()?;
        let kind = kind.ok_or_else(ApiError::internal)?;
        Ok((name, Connection { kind, settings, secret }, hook))
    }
}

#[derive(Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct ChangeConnection {
    #[schemars(with = "Option<Name<NAME_MAX>>")]
    name: Option<String>,
    #[schemars(extend("enum" = STATUSES))]
    status: Option<String>,
    /// The secret that replaces the one there is.
    #[schemars(length(min = 1, max = SECRET_MAX_BYTES))]
    secret: Option<String>,
    #[schemars(with = "Option<Line<NAME_MAX>>")]
    region: Patch<String>,
    #[schemars(with = "Option<Line<NAME_MAX>>")]
    domain: Patch<String>,
    #[schemars(with = "Option<Line<NAME_MAX>>")]
    stream: Patch<String>,
    #[schemars(with = "Option<Line<NAME_MAX>>")]
    configuration_set: Patch<String>,
    /// Most mails a second, of each delivery process; null: no limit.
    #[schemars(with = "Option<u32>", range(min = 1))]
    max_per_second: Patch<u32>,
    /// What the provider's events are verified with, instead of what there is. Never shown.
    #[schemars(with = "Option<Vec<String>>", length(max = HOOK_CHECKS_MAX), inner(length(min = 1, max = SECRET_MAX_BYTES)))]
    hook_secrets: Patch<Vec<String>>,
    /// SES: the ARNs of the SNS topics whose events count.
    #[schemars(with = "Option<Vec<String>>", length(max = HOOK_CHECKS_MAX), inner(length(min = 1, max = TOPIC_MAX_BYTES)))]
    hook_topics: Patch<Vec<String>>,
}

/// A connection as it is to be.
pub(super) struct WantedConnection {
    pub(super) name: String,
    pub(super) status: String,
    pub(super) settings: ConnectionSettings,
    pub(super) secret: Option<SecretString>,
    pub(super) hook: WantedHook,
}

impl ChangeConnection {
    /// The fields, and whether each is to be changed: for the audit log.
    pub(super) fn fields(&self) -> [(&'static str, bool); 10] {
        [
            ("name", self.name.is_some()),
            ("status", self.status.is_some()),
            ("secret", self.secret.is_some()),
            ("region", self.region.is_given()),
            ("domain", self.domain.is_given()),
            ("stream", self.stream.is_given()),
            ("configuration_set", self.configuration_set.is_given()),
            ("max_per_second", self.max_per_second.is_given()),
            ("hook_secrets", self.hook_secrets.is_given()),
            ("hook_topics", self.hook_topics.is_given()),
        ]
    }

    /// The connection after this change. Where an operator's connection leads is the operator's to change.
    pub(super) fn applied_to(self, before: &LockedConnection) -> Result<WantedConnection, ApiError> {
        let changes_account = self.fields().iter().any(|(name, given)| *given && !matches!(*name, "name" | "status"));
        if changes_account && (before.kind == ProviderKind::Smtp || before.settings.base_url.is_some()) {
            return Err(ApiError::conflict("connection_of_operator")
                .detail("only name and status of a connection that the operator added can be changed"));
        }
        let mut faults = Faults::default();
        let name = match self.name {
            Some(name) => faults.name("name", Some(name)),
            None => before.name.clone(),
        };
        if let Some(status) = &self.status {
            faults.one_of("status", status, &STATUSES);
        }
        let old = before.settings.clone();
        let settings = ConnectionSettings {
            region: self.region.applied_to(old.region),
            domain: self.domain.applied_to(old.domain),
            stream: self.stream.applied_to(old.stream),
            configuration_set: self.configuration_set.applied_to(old.configuration_set),
            max_per_second: self.max_per_second.applied_to(old.max_per_second),
            base_url: old.base_url,
        };
        let secret = self.secret.map(SecretString::from);
        let hook = WantedHook {
            secrets: self.hook_secrets.into_option().map(Option::unwrap_or_default),
            topics: self.hook_topics.into_option().map(Option::unwrap_or_default),
        };
        if changes_account {
            hook.check(before.kind.as_str(), &mut faults);
            check_lines(&mut faults, &settings);
            note(&mut faults, settings.check(before.kind, &HostPolicy::default()).err());
            note(&mut faults, secret.as_ref().and_then(|secret| check_secret(before.kind, secret).err()));
        }
        faults.finish()?;
        let status = self.status.unwrap_or_else(|| before.status.clone());
        Ok(WantedConnection { name, status, settings, secret, hook })
    }
}

fn check_lines(faults: &mut Faults, settings: &ConnectionSettings) {
    let lines = [
        ("region", &settings.region),
        ("domain", &settings.domain),
        ("stream", &settings.stream),
        ("configuration_set", &settings.configuration_set),
    ];
    for (path, text) in lines {
        faults.one_line(path, text.as_deref().unwrap_or_default(), NAME_MAX);
    }
}

/// Adds the fault of a setting, under the setting's name.
fn note(faults: &mut Faults, fault: Option<ConnectionFault>) {
    let Some(fault) = fault else { return };
    let path = fault.setting().unwrap_or("provider").replace('-', "_");
    let code = match fault {
        ConnectionFault::Missing(_) => "required",
        ConnectionFault::Foreign(_) => "not_allowed",
        ConnectionFault::Invalid(_) | ConnectionFault::BaseUrl | ConnectionFault::Setup => "invalid",
    };
    faults.add(path, code, fault.to_string());
}
