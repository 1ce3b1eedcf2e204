"""Headrace turns a log into something an application can stand on."""
