//! Resolves names while a message renders. Nothing is copied up front: a path goes straight to the field it names.
//! A name without a value is [`Missing`], never an error.

use std::cell::OnceCell;
use std::fmt;

use liquid_core::model::{
    DisplayCow, KString, KStringCow, KStringRef, ScalarCow, State, Value, ValueCow, ValueView, try_find,
};
use liquid_core::runtime::{PartialStore, Registers, Renderable, Runtime};
use serde_json::Value as Json;

use super::merge::{Contact, Links, MergeData};
use super::message::Fixed;

/// The value of a name that has none. To a template it is all of: nothing when printed, false, nil, empty, blank and
/// equal to `""`, so that every common way of asking "is there a first name?" gets the answer no.
#[derive(Debug)]
pub(super) struct Missing;

pub(super) static MISSING: Missing = Missing;

impl ValueView for Missing {
    fn as_debug(&self) -> &dyn fmt::Debug {
        self
    }

    fn render(&self) -> DisplayCow<'_> {
        DisplayCow::Owned(Box::new(""))
    }

    fn source(&self) -> DisplayCow<'_> {
        DisplayCow::Owned(Box::new("nil"))
    }

    fn type_name(&self) -> &'static str {
        "nil"
    }

    fn query_state(&self, state: State) -> bool {
        !matches!(state, State::Truthy)
    }

    fn to_kstr(&self) -> KStringCow<'_> {
        KStringCow::from_static("")
    }

    fn to_value(&self) -> Value {
        Value::Nil
    }

    fn as_scalar(&self) -> Option<ScalarCow<'_>> {
        Some(ScalarCow::new(""))
    }

    fn is_nil(&self) -> bool {
        true
    }
}

/// A loop that is running.
pub(super) struct Frame {
    pub(super) variable: KString,
    pub(super) item: Value,
    pub(super) index: i64,
    pub(super) length: i64,
}

/// Everything a message's names can mean.
pub(super) struct Scope<'a> {
    fixed: &'a Fixed,
    data: &'a MergeData,
    pub(super) links: &'a dyn Links,
    unsubscribe: OnceCell<String>,
    preferences: OnceCell<String>,
    pub(super) locals: Vec<(KString, Value)>,
    pub(super) frames: Vec<Frame>,
    registers: Registers,
}

impl<'a> Scope<'a> {
    pub(super) fn new(fixed: &'a Fixed, data: &'a MergeData, links: &'a dyn Links) -> Self {
        Self {
            fixed,
            data,
            links,
            unsubscribe: OnceCell::new(),
            preferences: OnceCell::new(),
            locals: Vec::new(),
            frames: Vec::new(),
            registers: Registers::default(),
        }
    }

    pub(super) fn unsubscribe(&self) -> &str {
        self.unsubscribe.get_or_init(|| self.links.unsubscribe())
    }

    pub(super) fn preferences(&self) -> &str {
        self.preferences.get_or_init(|| self.links.preferences())
    }

    pub(super) fn set(&mut self, name: &KString, value: Value) {
        match self.locals.iter_mut().find(|(known, _)| known == name) {
            Some((_, old)) => *old = value,
            None => self.locals.push((name.clone(), value)),
        }
    }

    /// The value of a path; [`Missing`] when there is none.
    pub(super) fn find(&self, path: &[ScalarCow<'_>]) -> ValueCow<'_> {
        let Some((root, rest)) = path.split_first() else { return missing() };
        let root = root.to_kstr();
        if let Some(value) = self.loop_value(&root, rest, self.frames.len()) {
            return value;
        }
        if let Some((_, value)) = self.locals.iter().find(|(name, _)| name == root.as_str()) {
            return tail(value, rest);
        }
        match root.as_str() {
            "contact" => self.contact(rest),
            "data" => json_at(&self.data.data, rest),
            "sender" => member(rest, |name| match name {
                "name" => Some(self.fixed.sender_name.as_str()),
                "email" => Some(self.fixed.sender_email.as_str()),
                "reply_to" => self.fixed.reply_to.as_deref(),
                _ => None,
            }),
            "campaign" => member(rest, |name| self.fixed.campaign.as_ref().and_then(|campaign| campaign.get(name))),
            "tenant" => member(rest, |name| self.fixed.tenant.get(name)),
            "unsubscribe_url" => borrowed(Some(self.unsubscribe()), rest),
            "preferences_url" => borrowed(Some(self.preferences()), rest),
            "physical_address" => borrowed(self.fixed.physical_address.as_deref(), rest),
            bare => borrowed(contact_field(&self.data.contact, bare), rest),
        }
    }

    fn contact(&self, rest: &[ScalarCow<'_>]) -> ValueCow<'_> {
        let Some((name, rest)) = rest.split_first() else { return missing() };
        let name = name.to_kstr();
        if name == "fields" {
            let Some((key, rest)) = rest.split_first() else { return missing() };
            let key = key.to_kstr();
            let own = self.data.contact.fields.get(key.as_str()).filter(|value| !is_empty(value));
            return match own {
                Some(value) => json_at(value, rest),
                None => borrowed(self.fixed.fallbacks.get(key.as_str()).map(String::as_str), rest),
            };
        }
        borrowed(contact_field(&self.data.contact, &name), rest)
    }

    /// A loop's variable or `forloop`, looking outwards from the given depth.
    fn loop_value(&self, root: &str, rest: &[ScalarCow<'_>], depth: usize) -> Option<ValueCow<'_>> {
        let frames = self.frames.get(..depth)?;
        if root == "forloop" {
            let frame = frames.last()?;
            let (name, rest) = rest.split_first()?;
            let last = frame.length - 1;
            let value = match name.to_kstr().as_str() {
                "index" => Value::scalar(frame.index + 1),
                "index0" => Value::scalar(frame.index),
                "rindex" => Value::scalar(frame.length - frame.index),
                "rindex0" => Value::scalar(last - frame.index),
                "first" => Value::scalar(frame.index == 0),
                "last" => Value::scalar(frame.index == last),
                "length" => Value::scalar(frame.length),
                "parentloop" => return self.loop_value("forloop", rest, depth - 1),
                _ => return Some(missing()),
            };
            return Some(ValueCow::Owned(value));
        }
        frames.iter().rev().find(|frame| frame.variable == root).map(|frame| tail(&frame.item, rest))
    }
}

fn missing<'a>() -> ValueCow<'a> {
    ValueCow::Borrowed(&MISSING)
}

fn tail<'a>(value: &'a Value, rest: &[ScalarCow<'_>]) -> ValueCow<'a> {
    try_find(value, rest).map_or_else(missing, |found| if found.is_nil() { missing() } else { found })
}

/// A text field. An empty one is missing.
fn borrowed<'a>(text: Option<&'a str>, rest: &[ScalarCow<'_>]) -> ValueCow<'a> {
    match text {
        Some(text) if !text.is_empty() => {
            let value = Value::scalar(KString::from_ref(text));
            if rest.is_empty() { ValueCow::Owned(value) } else { ValueCow::Owned(tail(&value, rest).into_owned()) }
        }
        _ => missing(),
    }
}

fn member<'a>(rest: &[ScalarCow<'_>], get: impl Fn(&str) -> Option<&'a str>) -> ValueCow<'a> {
    match rest.split_first() {
        Some((name, rest)) => borrowed(get(&name.to_kstr()), rest),
        None => missing(),
    }
}

fn contact_field<'a>(contact: &'a Contact, name: &str) -> Option<&'a str> {
    match name {
        "email" => Some(&contact.email),
        "first_name" => contact.first_name.as_deref(),
        "last_name" => contact.last_name.as_deref(),
        "title" => contact.title.as_deref(),
        "phone" => contact.phone.as_deref(),
        "company" => contact.company.as_deref(),
        "timezone" => contact.timezone.as_deref(),
        "locale" => contact.locale.as_deref(),
        "lifecycle_stage" => contact.lifecycle_stage.as_deref(),
        "dot_number" => contact.dot_number.as_deref(),
        _ => None,
    }
}

fn is_empty(value: &Json) -> bool {
    match value {
        Json::Null => true,
        Json::String(text) => text.is_empty(),
        _ => false,
    }
}

/// Walks JSON along a path and converts only what is found there.
fn json_at<'a>(value: &Json, path: &[ScalarCow<'_>]) -> ValueCow<'a> {
    let mut value = value;
    for (at, key) in path.iter().enumerate() {
        let next = match value {
            Json::Object(object) => object.get(key.to_kstr().as_str()),
            Json::Array(items) => key.to_integer().and_then(|index| {
                let index = if index < 0 { index + i64::try_from(items.len()).ok()? } else { index };
                items.get(usize::try_from(index).ok()?)
            }),
            _ => None,
        };
        match next {
            Some(next) => value = next,
            // `size`, `first`, `last` and the like are answered by the value itself.
            None => return ValueCow::Owned(tail(&liquid(value, 0), path.get(at..).unwrap_or_default()).into_owned()),
        }
    }
    match liquid(value, 0) {
        Value::Nil => missing(),
        Value::Scalar(scalar) if scalar.to_kstr().is_empty() => missing(),
        value => ValueCow::Owned(value),
    }
}

/// JSON as a Liquid value. Deeper than any template can reach is left out.
fn liquid(json: &Json, depth: usize) -> Value {
    match json {
        Json::Null => Value::Nil,
        Json::Bool(flag) => Value::scalar(*flag),
        Json::Number(number) => match (number.as_i64(), number.as_f64()) {
            (Some(whole), _) => Value::scalar(whole),
            (None, Some(float)) => Value::scalar(float),
            (None, None) => Value::Nil,
        },
        Json::String(text) => Value::scalar(KString::from_ref(text)),
        _ if depth > 24 => Value::Nil,
        Json::Array(items) => Value::Array(items.iter().map(|item| liquid(item, depth + 1)).collect()),
        Json::Object(object) => Value::Object(
            object.iter().map(|(key, value)| (KString::from_ref(key), liquid(value, depth + 1))).collect(),
        ),
    }
}

/// Templates cannot include others.
#[derive(Debug)]
struct NoPartials;

impl PartialStore for NoPartials {
    fn contains(&self, _: &str) -> bool {
        false
    }

    fn names(&self) -> Vec<&str> {
        Vec::new()
    }

    fn try_get(&self, _: &str) -> Option<std::sync::Arc<dyn Renderable>> {
        None
    }

    fn get(&self, _: &str) -> liquid_core::Result<std::sync::Arc<dyn Renderable>> {
        Err(liquid_core::Error::with_msg("templates cannot include others"))
    }
}

impl Runtime for Scope<'_> {
    fn partials(&self) -> &dyn PartialStore {
        &NoPartials
    }

    fn name(&self) -> Option<KStringRef<'_>> {
        None
    }

    fn roots(&self) -> std::collections::BTreeSet<KStringCow<'_>> {
        std::collections::BTreeSet::new()
    }

    fn try_get(&self, path: &[ScalarCow<'_>]) -> Option<ValueCow<'_>> {
        Some(self.find(path))
    }

    fn get(&self, path: &[ScalarCow<'_>]) -> liquid_core::Result<ValueCow<'_>> {
        Ok(self.find(path))
    }

    // Names are set by the engine, which owns the scope; no filter sets any.
    fn set_global(&self, _: KString, _: Value) -> Option<Value> {
        None
    }

    fn set_index(&self, _: KString, _: Value) -> Option<Value> {
        None
    }

    fn get_index<'s>(&'s self, _: &str) -> Option<ValueCow<'s>> {
        None
    }

    fn registers(&self) -> &Registers {
        &self.registers
    }
}
