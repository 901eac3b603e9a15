package main

var probeTargets []target
